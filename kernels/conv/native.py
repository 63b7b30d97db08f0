"""Convolution on the CPU, compiled: no patches are written, and nothing is kept but the images and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import conv2d
from duoln.ops.conv import Sizes, both, image_gradient, out_size

_FILE = "conv/conv.cpp"
_FLOPS_PER_BYTE = 8
"""Products in cache take a thread about as long as the transfer of a byte for so many."""
_SIZES = ("batch: int64, height: int64, width: int64, n_in: int64, kernel_rows: int64, kernel_columns: int64, "
          "n_out: int64, rows: int64, columns: int64, groups: int64, row_stride: int64, column_stride: int64, "
          "row_dilation: int64, column_dilation: int64, row_padding: int64, column_padding: int64, threads: int32")

_convolve = native.Function(_FILE, "conv2d_forward", f"x: real[4], weight: real[4], y: real[4], {_SIZES}")
_image_gradient = native.Function(_FILE, "conv2d_image_gradient",
                                  f"dy: real[4], weight: real[4], dx: real[4], {_SIZES}")
_weight_gradient = native.Function(_FILE, "conv2d_weight_gradient",
                                   f"x: real[4], dy: real[4], d_weight: real[4], {_SIZES}")


class _Saved(NamedTuple):
    x: Array
    weight: Array
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int


def _supports(be: Backend, x: Array, weight: Array, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
              groups: int = 1) -> str | None:
    return native.refusal(_FILE, x.dtype) if x.size and weight.size else "there are no values"


def _sizes(saved: _Saved) -> tuple[int, ...]:
    """The numbers that an entry takes after its arrays."""
    x, weight, *how = saved
    numbers, flops = _numbers(x.shape, weight.shape, *how)
    return (*numbers, native.threads_for(max(flops // _FLOPS_PER_BYTE, x.nbytes)))


@lru_cache
def _numbers(images: tuple[int, ...], weight: tuple[int, ...], stride: Sizes, padding: Sizes, dilation: Sizes,
             groups: int) -> tuple[tuple[int, ...], int]:
    """These numbers without that of threads, and the floating-point operations."""
    batch, height, width, n_in = images
    kernel, n_out = weight[:2], weight[3]
    bordered = [n + 2 * p for n, p in zip((height, width), both(padding), strict=True)]
    rows, columns = out_size(bordered, kernel, both(stride), both(dilation))
    return ((batch, height, width, n_in, *kernel, n_out, rows, columns, groups, *both(stride), *both(dilation),
             *both(padding)), 2 * batch * rows * columns * prod(weight))


def _forward(be: Backend, x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes = 1, groups: int = 1,
             ) -> tuple[Array, _Saved]:
    saved = _Saved(host.contiguous(x), host.contiguous(weight), stride, padding, dilation, groups)
    sizes = _sizes(saved)
    y = host.empty((sizes[0], *sizes[7:9], sizes[6]), x.dtype)
    _convolve(saved.x, saved.weight, y, *sizes)
    return y, saved


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    dy = host.contiguous(gout)
    sizes = _sizes(saved)
    dx = d_weight = None
    if needs[0]:
        # The compiled loop reads zeros between and around the outputs' gradients, and zero times infinity is NaN.
        if np.isfinite(saved.weight).all():
            dx = host.empty_like(saved.x)
            _image_gradient(dy, saved.weight, dx, *sizes)
        else:
            x, *others = saved
            rows, columns = both(saved.padding)
            padded = x.shape[0], x.shape[1] + 2 * rows, x.shape[2] + 2 * columns, x.shape[3]
            dx = image_gradient(be, padded, dy, *others)
    if needs[1]:
        d_weight = host.empty_like(saved.weight)
        _weight_gradient(saved.x, dy, d_weight, *sizes)
    return dx, d_weight


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
