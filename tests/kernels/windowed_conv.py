"""A rule of `conv2d` that reads its images through NumPy's view of their windows: tests break this view."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from duoln import ops
from duoln.core import Rule


def _windows(x, kernel, stride):
    """The input pixels of each output position: (batch, rows, columns, KH, KW, in), a view."""
    return sliding_window_view(x, kernel, (1, 2))[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def _supports(be, x, weight, stride, padding, dilation=1, groups=1):
    return None if isinstance(stride, int) and isinstance(padding, int) and dilation == groups == 1 and x.size and weight.size else "it has one stride"


def _forward(be, x, weight, stride, padding, dilation=1, groups=1):
    border = (padding, padding)
    padded = np.ascontiguousarray(np.pad(x, ((0, 0), border, border, (0, 0))) if padding else x)
    y = np.stack([np.tensordot(image, weight, 3) for image in _windows(padded, weight.shape[:2], stride)])
    return y, ops.conv2d.rules("numpy")[-1].forward(be, x, weight, stride, padding)[1]


RULE = Rule("image by image", _forward, lambda be, saved, gout, needs: ops.conv2d.rules("numpy")[-1].vjp(be, saved, gout, needs),
            _supports)
