"""Convolution on the CPU without a compiler: one image's patches at a time; the composed rule has all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import conv2d
from duoln.ops.conv import Sizes


class _Saved(NamedTuple):
    padded: Array
    weight: Array
    stride: int
    padding: int


def supports(be: Backend, x: Array, weight: Array, stride: Sizes = 1, padding: int = 0, dilation: Sizes = 1,
             groups: int = 1) -> str | None:
    """The reason why this rule cannot run; None if it can."""
    if isinstance(stride, tuple) or dilation != 1 or groups != 1:
        return "it has one stride, no dilation and no groups"
    return None if x.size and weight.size else "there are no values"


def _windows(padded: Array, kernel: tuple[int, int], stride: int) -> Array:
    """The input pixels of each output position: (batch, rows, columns, KH, KW, in), a view."""
    return sliding_window_view(padded, kernel, (1, 2))[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def _forward(be: Backend, x: Array, weight: Array, stride: int, padding: int, dilation: int = 1, groups: int = 1,
             ) -> tuple[Array, _Saved]:
    border = (padding, padding)
    padded = np.ascontiguousarray(np.pad(x, ((0, 0), border, border, (0, 0))) if padding else x)
    y = np.stack([np.tensordot(image, weight, 3) for image in _windows(padded, weight.shape[:2], stride)])
    return y, _Saved(padded, weight, stride, padding)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    padded, weight, stride, padding = saved
    dx = d_weight = None
    if needs[0]:
        dx = image_gradient(gout, weight, np.zeros_like(padded), stride, padding)
    if needs[1]:
        images = zip(_windows(padded, weight.shape[:2], stride), gout, strict=True)
        d_weight = sum(np.tensordot(image, dy, ((0, 1), (0, 1))) for image, dy in images)
    return [dx, d_weight]


def image_gradient(gout: Array, weight: Array, d_padded: Array, stride: int, padding: int) -> Array:
    """The gradient of the images, from zeros of the shape of the padded images; each product is that of a weight that
    an output used.
    """
    height, width = (stride * (n - 1) + 1 for n in gout.shape[1:3])
    for i, j in np.ndindex(weight.shape[:2]):
        d_padded[:, i:i + height:stride, j:j + width:stride] += gout @ weight[i, j].T
    return d_padded[:, padding:d_padded.shape[1] - padding, padding:d_padded.shape[2] - padding]


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("image by image", _forward, _vjp, supports), backend="numpy")
