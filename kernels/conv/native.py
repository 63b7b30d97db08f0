"""Convolution on the CPU, compiled: no patches are written, and nothing is kept but the images and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import conv2d
from duoln.ops.conv import Sizes

_FILE = "conv/conv.cpp"
_FLOPS_PER_BYTE = 8
"""Products in cache take a thread about as long as the transfer of a byte for so many."""
_SIZES = ("batch: int64, height: int64, width: int64, n_in: int64, kernel_rows: int64, kernel_columns: int64, "
          "n_out: int64, rows: int64, columns: int64, stride: int64, padding: int64, threads: int32")

_convolve = native.Function(_FILE, "conv2d_forward", f"x: real[4], weight: real[4], y: real[4], {_SIZES}")
_image_gradient = native.Function(_FILE, "conv2d_image_gradient",
                                  f"dy: real[4], weight: real[4], dx: real[4], {_SIZES}")
_weight_gradient = native.Function(_FILE, "conv2d_weight_gradient",
                                   f"x: real[4], dy: real[4], d_weight: real[4], {_SIZES}")


class _Saved(NamedTuple):
    x: Array
    weight: Array
    stride: int
    padding: int


def _supports(be: Backend, x: Array, weight: Array, stride: Sizes = 1, padding: int = 0, dilation: Sizes = 1,
              groups: int = 1) -> str | None:
    if isinstance(stride, tuple) or dilation != 1 or groups != 1:
        return "it has one stride, no dilation and no groups"
    return native.refusal(_FILE, x.dtype) if x.size and weight.size else "there are no values"


def _sizes(x: Array, weight: Array, stride: int, padding: int) -> tuple[int, ...]:
    """The numbers that an entry takes after its arrays."""
    batch, height, width, n_in = x.shape
    kernel_rows, kernel_columns, _, n_out = weight.shape
    rows, columns = ((n + 2 * padding - k) // stride + 1
                     for n, k in zip((height, width), (kernel_rows, kernel_columns), strict=True))
    flops = 2 * batch * rows * columns * weight.size
    return (batch, height, width, n_in, kernel_rows, kernel_columns, n_out, rows, columns, stride, padding,
            native.threads_for(flops // _FLOPS_PER_BYTE))


def _forward(be: Backend, x: Array, weight: Array, stride: int, padding: int, dilation: int = 1, groups: int = 1,
             ) -> tuple[Array, _Saved]:
    x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
    sizes = _sizes(x, weight, stride, padding)
    y = host.empty((sizes[0], *sizes[7:9], sizes[6]), x.dtype)
    _convolve(x, weight, y, *sizes)
    return y, _Saved(x, weight, stride, padding)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    dy = np.ascontiguousarray(gout)
    sizes = _sizes(*saved)
    dx = d_weight = None
    if needs[0]:
        # The compiled loop reads zeros between and around the outputs' gradients, and zero times infinity is NaN.
        if np.isfinite(saved.weight).all():
            dx = host.empty_like(saved.x)
            _image_gradient(dy, saved.weight, dx, *sizes)
        else:
            dx = _image_gradient_by_weight(saved, dy)
    if needs[1]:
        d_weight = host.empty_like(saved.weight)
        _weight_gradient(saved.x, dy, d_weight, *sizes)
    return dx, d_weight


def _image_gradient_by_weight(saved: _Saved, dy: Array) -> Array:
    """The gradient of the images; each product is that of a weight that an output used."""
    _, weight, stride, padding = saved
    batch, height, width, n_in = saved.x.shape
    d_padded = np.zeros((batch, height + 2 * padding, width + 2 * padding, n_in), dy.dtype)
    rows, columns = (stride * (n - 1) + 1 for n in dy.shape[1:3])
    for i, j in np.ndindex(weight.shape[:2]):
        d_padded[:, i:i + rows:stride, j:j + columns:stride] += dy @ weight[i, j].T
    return d_padded[:, padding:padding + height, padding:padding + width]


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
