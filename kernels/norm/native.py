"""The norms on the CPU, compiled: each row is read once from memory, and one to three numbers are kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host, native
from duoln.kernels.activation import NUMBERS
from duoln.kernels.norm import OPERATORS, Norm, rule

_FILE = "norm/norm.cpp"
_BLOCK = 64
"""Rows whose shares of a gain's gradient are added up together, as in the C++ text."""
_ENTRIES = {True: "layer_norm", False: "rms_norm"}
"""The first words of the entries with a mean and without."""
_NORMALISE = {centred: native.Function(
    _FILE, f"{name}_forward", "x: real[2], residual: real[2]?, gain: real[1]?, bias: real[1]?, total: real[2]?, "
    "y: real[2], means: real[2]?, rstd: real[1], rows: int64, width: int64, eps: float64, activation: int32, "
    "threads: int32") for centred, name in _ENTRIES.items()}
_DIFFERENTIATE = {centred: native.Function(
    _FILE, f"{name}_backward", "x: real[2], gain: real[1]?, bias: real[1]?, means: real[2]?, rstd: real[1], "
    "dy: real[2], d_total: real[2]?, dx: real[2]?, gain_parts: real[2]?, bias_parts: real[2]?, rows: int64, "
    "width: int64, activation: int32, threads: int32") for centred, name in _ENTRIES.items()}


class _Kept(NamedTuple):
    rows: Array
    """What was normalised, (rows, width)."""
    gain: Array | None
    bias: Array | None
    means: Array | None
    """Of each row its mean and the mean of what is left without that, (rows, 2); None for an RMS norm."""
    rstd: Array
    activation: str | None


def _supports(be: Backend, norm: Norm, x: Array, eps: float) -> str | None:
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None,
             eps: float, activation: str | None) -> tuple[Array, Array | None, _Kept]:
    flat = host.as_rows(x)
    rows, width = flat.shape
    gain, bias = (None if p is None else np.ascontiguousarray(p) for p in (gain, bias))
    more, total = (None, None) if residual is None else (host.as_rows(residual), host.empty_like(flat))
    y, rstd = host.empty_like(flat), np.empty(rows, x.dtype)
    means = np.empty((rows, 2), x.dtype) if norm.centred else None
    _NORMALISE[norm.centred](flat, more, gain, bias, total, y, means, rstd, rows, width, eps, NUMBERS[activation],
                             native.threads_for(x.nbytes))
    kept = _Kept(flat if total is None else total, gain, bias, means, rstd, activation)
    return y.reshape(x.shape), None if total is None else total.reshape(x.shape), kept


def _backward(norm: Norm, kept: _Kept, dy: Array, d_total: Array | None,
              needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x = kept.rows
    rows, width = x.shape
    dx = host.empty_like(x) if needs[0] else None
    blocks = -(-rows // _BLOCK)
    parts = [np.empty((blocks, width), x.dtype) if need else None for need in needs[1:]]
    _DIFFERENTIATE[norm.centred](x, kept.gain, kept.bias, kept.means, kept.rstd, host.as_rows(dy),
                                 None if d_total is None else host.as_rows(d_total), dx, *parts, rows, width,
                                 NUMBERS[kept.activation], native.threads_for(x.nbytes))
    return (None if dx is None else dx.reshape(dy.shape), *(None if p is None else host.added_up(p) for p in parts))


def attach() -> None:
    """Add the rules to the operators."""
    for norm, op in OPERATORS.items():
        op.add(rule(norm, "compiled", _forward, _backward, _supports), backend="numpy")
