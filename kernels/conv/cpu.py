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
from duoln.kernels.launch import Launch
from duoln.ops import conv2d
from duoln.ops.conv import Sizes, as_pair, image_gradient, out_size

_FILE = "conv/conv.cpp"
_FLOPS_PER_BYTE = 8
"""Products in cache take a thread about as long as the transfer of a byte for so many."""
_TEXT = _FILE.removesuffix(".cpp")
_IMAGES, _WEIGHT = "[batch, height, width, n_in]", "[kernel_rows, kernel_columns, depth, n_out]"
_OUT = "[batch, rows, columns, n_out]"
_HOW = ("groups: int64, row_stride: int64, column_stride: int64, row_dilation: int64, column_dilation: int64, "
        "row_padding: int64, column_padding: int64, threads: int32")

_convolve = Launch(_TEXT, "conv2d_forward", f"x: real{_IMAGES}, weight: real{_WEIGHT}, y: own{_OUT}, {_HOW}")
_image_gradient = Launch(_TEXT, "conv2d_image_gradient", f"dy: real{_OUT}, weight: real{_WEIGHT}, dx: own{_IMAGES}, "
                                                         f"{_HOW}")
_weight_gradient = Launch(_TEXT, "conv2d_weight_gradient", f"x: real{_IMAGES}, dy: real{_OUT}, d_weight: own{_WEIGHT}, "
                                                           f"{_HOW}")


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


def _entry_numbers(saved: _Saved) -> tuple[int, ...]:
    """The numbers that an entry takes after its arrays."""
    x, weight, stride, padding, dilation, groups = saved
    _, flops = _result(x.shape, weight.shape, stride, padding, dilation)
    return (groups, *as_pair(stride), *as_pair(dilation), *as_pair(padding),
            native.threads_for(max(flops // _FLOPS_PER_BYTE, x.nbytes)))


@lru_cache
def _result(images: tuple[int, ...], weight: tuple[int, ...], stride: Sizes, padding: Sizes,
            dilation: Sizes) -> tuple[tuple[int, ...], int]:
    """The shape of the result, and the floating-point operations."""
    bordered = [n + 2 * p for n, p in zip(images[1:3], as_pair(padding), strict=True)]
    shape = images[0], *out_size(bordered, weight[:2], as_pair(stride), as_pair(dilation)), weight[3]
    return shape, 2 * prod(shape[:3]) * prod(weight)


def _forward(be: Backend, x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes = 1, groups: int = 1,
             ) -> tuple[Array, _Saved]:
    saved = _Saved(host.contiguous(x), host.contiguous(weight), stride, padding, dilation, groups)
    y = host.empty(_result(x.shape, weight.shape, stride, padding, dilation)[0], x.dtype)
    _convolve[be.name](saved.x, saved.weight, y, *_entry_numbers(saved))
    return y, saved


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    dy, how = host.contiguous(gout), _entry_numbers(saved)
    dx = d_weight = None
    if needs[0]:
        # The compiled loop reads zeros between and around the outputs' gradients, and zero times infinity is NaN.
        if np.isfinite(saved.weight).all():
            dx = host.empty_like(saved.x)
            _image_gradient[be.name](dy, saved.weight, dx, *how)
        else:
            x, *others = saved
            rows, columns = as_pair(saved.padding)
            padded = x.shape[0], x.shape[1] + 2 * rows, x.shape[2] + 2 * columns, x.shape[3]
            dx = image_gradient(be, padded, dy, *others)
    if needs[1]:
        d_weight = host.empty_like(saved.weight)
        _weight_gradient[be.name](saved.x, dy, d_weight, *how)
    return dx, d_weight


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
