"""Layer norm on the CPU, compiled: each row is read once from memory, and nothing is kept for it but two numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.layer_norm.numpy import supports
from duoln.ops import layer_norm

_FILE = "layer_norm/layer_norm.cpp"
_ACTIVATIONS = {None: 0, "relu": 1, "tanh": 2}
_BLOCK = 64
"""Rows whose shares of a gain's gradient are added up together, as in the C++ text."""

_normalise = native.Function(_FILE, "layer_norm_forward",
                             "x: real[2], gain: real[1]?, bias: real[1]?, y: real[2], mean: real[1], rstd: real[1], "
                             "rows: int64, width: int64, eps: float64, activation: int32, threads: int32")
_differentiate = native.Function(_FILE, "layer_norm_backward",
                                 "x: real[2], gain: real[1]?, bias: real[1]?, mean: real[1], rstd: real[1], "
                                 "dy: real[2], dx: real[2]?, gain_parts: real[2]?, bias_parts: real[2]?, rows: int64, "
                                 "width: int64, activation: int32, threads: int32")


class _Saved(NamedTuple):
    x: Array
    gain: Array | None
    bias: Array | None
    mean: Array
    """Of each row, after its first value was taken off."""
    rstd: Array
    activation: str | None


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              eps_place: str = "inside", activation: str | None = None) -> str | None:
    return supports(be, x, gain, bias, eps, eps_place, activation) or native.failure(_FILE)


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float, eps_place: str,
             activation: str | None = None) -> tuple[Array, _Saved]:
    width = x.shape[-1]
    rows = prod(x.shape[:-1])
    flat = np.ascontiguousarray(x).reshape(rows, width)
    gain, bias = (None if p is None else np.ascontiguousarray(p) for p in (gain, bias))
    y, mean, rstd = np.empty_like(flat), np.empty(rows, flat.dtype), np.empty(rows, flat.dtype)
    _normalise(flat, gain, bias, y, mean, rstd, rows, width, eps, _ACTIVATIONS[activation],
               native.threads_for(flat.nbytes))
    return y.reshape(x.shape), _Saved(flat, gain, bias, mean, rstd, activation)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x = saved.x
    rows, width = x.shape
    dy = np.ascontiguousarray(gout).reshape(rows, width)
    dx = np.empty_like(x) if needs[0] else None
    blocks = -(-rows // _BLOCK)
    gain_parts, bias_parts = (np.empty((blocks, width), x.dtype) if need else None for need in needs[1:])
    _differentiate(x, saved.gain, saved.bias, saved.mean, saved.rstd, dy, dx, gain_parts, bias_parts, rows, width,
                   _ACTIVATIONS[saved.activation], native.threads_for(x.nbytes))
    return (None if dx is None else dx.reshape(gout.shape),
            None if gain_parts is None else _total(gain_parts), None if bias_parts is None else _total(bias_parts))


def _total(parts: Array) -> Array:
    total: Array = parts[0] if len(parts) == 1 else parts.sum(axis=0)
    return total


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
