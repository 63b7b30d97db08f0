"""Layer norm on CUDA: a row is read once and stays in registers; the gradient reads x and dy once.

x, y and their gradients may be stored in 16 bits; gain, bias and all sums are float32.

For the gradient the rule keeps x and three floats per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.layer_norm.plan import plan
from duoln.ops import layer_norm

_FORWARD = ("x: storage[2], gain: float32[1]?, bias: float32[1]?, y: storage[2], stats: float32[2], rows: int32, "
            "width: int32, eps: float32, activation: int32")
_BACKWARD = ("x: storage[2], stats: float32[2], gain: float32[1]?, bias: float32[1]?, dy: storage[2], dx: storage[2]?, "
             "d_gain: float32[2]?, d_bias: float32[2]?, rows: int32, width: int32, stride: int32, first: int32, "
             "activation: int32")
_forward_row = launch.stored_kernels("layer_norm/layer_norm.cu", "layer_norm_forward", _FORWARD)
_backward_row = launch.stored_kernels("layer_norm/layer_norm.cu", "layer_norm_backward", _BACKWARD)
_forward_wide = launch.stored_kernels("layer_norm/wide.cu", "layer_norm_forward_wide", _FORWARD)
_backward_wide = launch.stored_kernels("layer_norm/wide.cu", "layer_norm_backward_wide", _BACKWARD)


_ACTIVATIONS = {None: 0, "relu": 1, "tanh": 2}
"""The numbers of the activations in activation.h."""


class _Saved(NamedTuple):
    x: Array
    stats: Array
    gain: Array | None
    bias: Array | None
    activation: str | None


def forward(x: Array, gain: Array | None, bias: Array | None, eps: float,
            activation: str | None = None) -> tuple[Array, Array]:
    """The normalised rows of x (rows, width), and the three floats of each row that the gradient needs."""
    rows, width = x.shape
    y, stats = cupy.empty_like(x), cupy.empty((rows, 3), dtype=np.float32)
    p = plan(width, launch.vector_width(width, x, y, gain, bias, most=8), launch.STORAGES[x.dtype])
    kernels = _forward_wide if p.wide else _forward_row
    kernels[x.dtype]((-(-rows // p.rows),), (p.threads, p.rows),
                     (x, gain, bias, y, stats, rows, width, eps, _ACTIVATIONS[activation]), p.macros)
    return y, stats


def backward(x: Array, stats: Array, gain: Array | None, dy: Array, needs: Sequence[bool], first: int = 0,
             width: int | None = None, bias: Array | None = None,
             activation: str | None = None) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of rows, gain and bias.

    Args:
        x: (rows, stride); the columns `first` to `first + width` were normalised.
        stats: the floats that `forward` kept, (rows, 3).
        gain: (width,), or None.
        dy: like x.
        needs: whether to compute dx, d_gain and d_bias.
        first: the first column.
        width: the number of columns; all from `first` if None.
        bias: (width,), or None; it is read if there is an activation.
        activation: the activation after the norm.
    """
    rows, stride = x.shape
    width = stride - first if width is None else width
    dx = cupy.empty_like(x) if needs[0] else None
    vector = launch.vector_width(gcd(stride, width, first), x, dy, dx, gain, bias, most=8)
    p = plan(width, vector, launch.STORAGES[x.dtype])
    blocks = min(-(-rows // p.rows), launch.multiprocessors() * p.blocks_per_processor)
    parts = [cupy.empty((blocks * p.rows, width), dtype=np.float32) if need else None for need in needs[1:]]
    kernels = _backward_wide if p.wide else _backward_row
    kernels[x.dtype]((blocks,), (p.threads, p.rows),
                     (x, stats, gain, bias, dy, dx, *parts, rows, width, stride, first, _ACTIVATIONS[activation]),
                     p.macros)
    d_gain, d_bias = _sums(*parts)
    return dx, d_gain, d_bias


def _sums(of_gain: Array | None, of_bias: Array | None) -> tuple[Array | None, Array | None]:
    """The gradients of gain and bias from their parts, in one launch."""
    if of_gain is None:
        return None, None if of_bias is None else launch.sum_columns(of_bias)[0]
    return launch.sum_columns(of_gain, of_bias)


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              eps_place: str = "inside", activation: str | None = None) -> str | None:
    if be.dtype(x) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
    if eps_place != "inside":
        return "epsilon is outside the root"
    return launch.too_large(x) if x.size else "there are no values"


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             eps_place: str, activation: str | None = None) -> tuple[Array, _Saved]:
    flat = cupy.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])
    gain, bias = launch.packed(gain, bias)
    y, stats = forward(flat, gain, bias, eps, activation)
    return y.reshape(x.shape), _Saved(flat, stats, gain, bias, activation)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    dy = cupy.ascontiguousarray(gout).reshape(saved.x.shape)
    dx, d_gain, d_bias = backward(saved.x, saved.stats, saved.gain, dy, needs, bias=saved.bias,
                                  activation=saved.activation)
    return None if dx is None else dx.reshape(gout.shape), d_gain, d_bias


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("cuda row", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
