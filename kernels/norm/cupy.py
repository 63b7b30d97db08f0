"""The norms on CUDA: launches of `norm.cu` and `wide.cu`.

A row is read once and stays in registers; the gradient reads each array once. x, residual, total, y and their gradients
may be stored in 16 bits, all in one dtype; gain, bias, statistics and all sums are float32. For the gradient the rules
keep the rows and three floats for each, or one of an RMS norm. Of a sum they keep the sums, or in 16 bits both arrays,
because rows are normalised before the sums are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.kernels import launch
from duoln.kernels.activation import NUMBERS
from duoln.kernels.norm import OPERATORS, Norm, rule
from duoln.kernels.norm.plan import plan

_FORWARD = ("x: storage[2], residual: storage[2]?, gain: float32[1]?, bias: float32[1]?, total: storage[2]?, "
            "y: storage[2], stats: float32[2], rows: int32, width: int32, eps: float32, activation: int32")
_BACKWARD = ("x: storage[2], residual: storage[2]?, stats: float32[2], gain: float32[1]?, bias: float32[1]?, "
             "dy: storage[2], d_total: storage[2]?, dx: storage[2]?, d_gain: float32[2]?, d_bias: float32[2]?, "
             "rows: int32, width: int32, stride: int32, first: int32, activation: int32")
_forward_row = launch.stored_kernels("norm/norm.cu", "layer_norm_forward", _FORWARD)
_backward_row = launch.stored_kernels("norm/norm.cu", "layer_norm_backward", _BACKWARD)
_forward_wide = launch.stored_kernels("norm/wide.cu", "layer_norm_forward_wide", _FORWARD)
_backward_wide = launch.stored_kernels("norm/wide.cu", "layer_norm_backward_wide", _BACKWARD)


class Kept(NamedTuple):
    """The arrays that the gradient reads."""

    x: Array
    """(rows, stride): the rows, or with `residual` the other summand."""
    stats: Array
    """(rows, 3) for layer norm, (rows, 1) for RMS norm."""
    gain: Array | None = None
    bias: Array | None = None
    residual: Array | None = None
    """Like x: where 16 bits do not hold the sum that was normalised."""
    activation: str | None = None


def _supports(norm: Norm, be: Backend, x: Array, *arrays: Array | None, **attrs: Any) -> str | None:
    if be.dtype(x) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
    return launch.too_large(x) if x.size else "there are no values"


def _as_rows(x: Array) -> Array:
    """(..., width) -> (rows, width), in contiguous memory."""
    return cupy.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])


def forward(be: Backend, norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None,
            eps: float, activation: str | None) -> tuple[Array, Array | None, Kept]:
    """The normalised rows, their sums where they are sums, and what the gradient needs; see `rule`."""
    gain, bias = launch.packed(gain, bias)
    flat, more = _as_rows(x), None if residual is None else _as_rows(residual)
    rows, width = flat.shape
    y, total = cupy.empty_like(flat), None if more is None else cupy.empty_like(flat)
    stats = cupy.empty((rows, 3 if norm.centred else 1), dtype=np.float32)
    vector = launch.vector_width(width, flat, more, gain, bias, total, y, most=8)
    p = plan(width, vector, launch.STORAGES[x.dtype], norm)
    kernels = _forward_wide if p.wide else _forward_row
    kernels[x.dtype]((-(-rows // p.rows),), (p.threads, p.rows),
                     (flat, more, gain, bias, total, y, stats, rows, width, eps, NUMBERS[activation]), p.macros)
    if total is None:
        return y.reshape(x.shape), None, Kept(flat, stats, gain, bias, None, activation)
    exact = x.dtype == np.float32
    kept = Kept(total if exact else flat, stats, gain, bias, None if exact else more)
    return y.reshape(x.shape), total.reshape(x.shape), kept


def _backward(norm: Norm, kept: Kept, dy: Array, d_total: Array | None,
              needs: Sequence[bool]) -> tuple[Array | None, ...]:
    dx, *of_parameters = backward(norm, kept, _as_rows(dy), needs, None if d_total is None else _as_rows(d_total))
    return None if dx is None else dx.reshape(dy.shape), *of_parameters


def backward(norm: Norm, kept: Kept, dy: Array, needs: Sequence[bool], d_total: Array | None = None, first: int = 0,
             width: int | None = None) -> tuple[Array | None, Array | None, Array | None]:
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


def _sums(of_gain: Array | None, of_bias: Array | None) -> tuple[Array | None, Array | None]:
    """The gradients of gain and bias from their parts, in one launch."""
    if of_gain is None:
        return None, None if of_bias is None else launch.sum_columns(of_bias)[0]
    return launch.sum_columns(of_gain, of_bias)


def attach() -> None:
    """Add the rules to the operators."""
    for norm, op in OPERATORS.items():
        op.add(rule(norm, "cuda row", forward, _backward, _supports, stored=True), backend="cupy")
