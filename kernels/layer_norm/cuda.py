"""Launches of `layer_norm.cu` and `wide.cu`: layer norm and RMS norm on CUDA, of rows or of the sum of two arrays.

A row is read once and stays in registers; the gradient reads each array once. x, residual, total, y and their gradients
may be stored in 16 bits, all in one dtype; gain, bias, statistics and all sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.kernels import launch
from duoln.kernels.activation import NUMBERS
from duoln.kernels.layer_norm.plan import plan
from duoln.kernels.layer_norm.variant import Norm

_FORWARD = ("x: storage[2], residual: storage[2]?, gain: float32[1]?, bias: float32[1]?, total: storage[2]?, "
            "y: storage[2], stats: float32[2], rows: int32, width: int32, eps: float32, activation: int32")
_BACKWARD = ("x: storage[2], residual: storage[2]?, stats: float32[2], gain: float32[1]?, bias: float32[1]?, "
             "dy: storage[2], d_total: storage[2]?, dx: storage[2]?, d_gain: float32[2]?, d_bias: float32[2]?, "
             "rows: int32, width: int32, stride: int32, first: int32, activation: int32")
_forward_row = launch.stored_kernels("layer_norm/layer_norm.cu", "layer_norm_forward", _FORWARD)
_backward_row = launch.stored_kernels("layer_norm/layer_norm.cu", "layer_norm_backward", _BACKWARD)
_forward_wide = launch.stored_kernels("layer_norm/wide.cu", "layer_norm_forward_wide", _FORWARD)
_backward_wide = launch.stored_kernels("layer_norm/wide.cu", "layer_norm_backward_wide", _BACKWARD)


Gradients = tuple[Array | None, Array | None, Array | None]
"""Of the rows, of the gain and of the bias."""


class Kept(NamedTuple):
    """What the gradient reads."""

    x: Array
    """(rows, stride): the rows, or with `residual` what was added to it."""
    stats: Array
    """(rows, 3) for layer norm, (rows, 1) for RMS norm."""
    gain: Array | None = None
    bias: Array | None = None
    residual: Array | None = None
    """Like x: where 16 bits do not hold the sum that was normalised."""
    activation: str | None = None


def supports(be: Backend, x: Array) -> str | None:
    """The reason why the kernels cannot take rows; None if they can."""
    if be.dtype(x) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
    return launch.too_large(x) if x.size else "there are no values"


def as_rows(x: Array) -> Array:
    """(..., width) -> (rows, width), in contiguous memory."""
    return cupy.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])


def forward(norm: Norm, x: Array, gain: Array | None, bias: Array | None, eps: float,
            activation: str | None = None) -> tuple[Array, Kept]:
    """The normalised rows of x (rows, width), and what the gradient needs; it keeps x."""
    y, stats = cupy.empty_like(x), cupy.empty((x.shape[0], norm.stats), dtype=np.float32)
    _run(norm, x, None, gain, bias, None, y, stats, eps, activation)
    return y, Kept(x, stats, gain, bias, None, activation)


def add_forward(norm: Norm, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                eps: float) -> tuple[Array, Array, Kept]:
    """The normalised rows of x + residual, (rows, width) each, the sums themselves, and what the gradient needs.

    It keeps the sums, or of 16 bits both arrays, because rows are normalised before the sums are rounded.
    """
    y, total = cupy.empty_like(x), cupy.empty_like(x)
    stats = cupy.empty((x.shape[0], norm.stats), dtype=np.float32)
    _run(norm._replace(residual=True), x, residual, gain, bias, total, y, stats, eps, None)
    exact = x.dtype == np.float32
    return y, total, Kept(total if exact else x, stats, gain, bias, None if exact else residual)


def _run(norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None, total: Array | None,
         y: Array, stats: Array, eps: float, activation: str | None) -> None:
    rows, width = x.shape
    vector = launch.vector_width(width, x, residual, gain, bias, total, y, most=8)
    p = plan(width, vector, launch.STORAGES[x.dtype], norm)
    kernels = _forward_wide if p.wide else _forward_row
    kernels[x.dtype]((-(-rows // p.rows),), (p.threads, p.rows),
                     (x, residual, gain, bias, total, y, stats, rows, width, eps, NUMBERS[activation]), p.macros)


def backward(norm: Norm, kept: Kept, dy: Array, needs: Sequence[bool], d_total: Array | None = None, first: int = 0,
             width: int | None = None) -> Gradients:
    """Gradients of rows, gain and bias; that of rows is the gradient of x and of residual.

    Args:
        norm: which norm it was.
        kept: what the forward pass kept.
        dy: the gradient of y, like x.
        needs: whether to compute that of the rows, of the gain and of the bias.
        d_total: the gradient of the sums, like x, or None.
        first: the first column that was normalised; above 0 for rows of one array alone.
        width: the number of columns; all from `first` if None.
    """
    x, stats, gain, bias, residual, activation = kept
    rows, stride = x.shape
    width = stride - first if width is None else width
    dx = cupy.empty_like(x) if needs[0] else None
    vector = launch.vector_width(gcd(stride, width, first), x, residual, dy, d_total, dx, gain, bias, most=8)
    summed = norm._replace(residual=residual is not None or d_total is not None)
    p = plan(width, vector, launch.STORAGES[x.dtype], summed)
    blocks = min(-(-rows // p.rows), launch.multiprocessors() * p.blocks_per_processor)
    parts = [cupy.empty((blocks * p.rows, width), dtype=np.float32) if need else None for need in needs[1:]]
    kernels = _backward_wide if p.wide else _backward_row
    kernels[x.dtype]((blocks,), (p.threads, p.rows),
                     (x, residual, stats, gain, bias, dy, d_total, dx, *parts, rows, width, stride, first,
                      NUMBERS[activation]), p.macros)
    return dx, *_sums(*parts)


def add_backward(norm: Norm, kept: Kept, gouts: tuple[Array | None, Array | None],
                 needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of x, residual, gain and bias from those of y and of the sums, either of which may be None.

    Shape:
        gouts (..., width) -> (..., width) twice, the same array, (width,), (width,).
    """
    dy, d_total = gouts
    if dy is None:
        return (d_total if needs[0] else None, d_total if needs[1] else None, None, None)
    dx, d_gain, d_bias = backward(norm, kept, as_rows(dy), (needs[0] or needs[1], *needs[2:]),
                                  None if d_total is None else as_rows(d_total))
    dx = None if dx is None else dx.reshape(dy.shape)
    return (dx if needs[0] else None, dx if needs[1] else None, d_gain, d_bias)


def _sums(of_gain: Array | None, of_bias: Array | None) -> tuple[Array | None, Array | None]:
    """The gradients of gain and bias from their parts, in one launch."""
    if of_gain is None:
        return None, None if of_bias is None else launch.sum_columns(of_bias)[0]
    return launch.sum_columns(of_gain, of_bias)
