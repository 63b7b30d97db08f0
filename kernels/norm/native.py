"""The norms on the CPU, compiled: each row is read once from memory, and one to three numbers are kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.kernels import native
from duoln.kernels.activation import NUMBERS
from duoln.kernels.norm import OPERATORS, Norm, rule

_FILE = "norm/norm.cpp"
_NORMALISE = {centred: native.launch(
    _FILE, f"{name}_forward", "x: real[*rows, width], residual: real[*rows, width]?, gain: real[width]?, "
    "bias: real[width]?, eps: float64, activation: int32 "
    "-> total: like x?, y: like x, means: real[*rows, 2]?, rstd: real[*rows]")
    for centred, name in ((True, "layer_norm"), (False, "rms_norm"))}
_DIFFERENTIATE = {centred: native.launch(
    _FILE, f"{name}_backward", "x: real[*rows, width], gain: real[width]?, bias: real[width]?, means: real[*rows, 2]?, "
    "rstd: real[*rows], dy: real[*rows, width], d_total: real[*rows, width]?, activation: int32 "
    "-> dx: like x?, d_gain: sum[width]?, d_bias: sum[width]?", block=64)  # the rows of a block of the C++ text
    for centred, name in ((True, "layer_norm"), (False, "rms_norm"))}


def _supports(norm: Norm, be: Backend, x: Array, *arrays: Array | None, **attrs: Any) -> str | None:
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None,
             eps: float, activation: str | None) -> tuple[Array, Array | None, tuple[Any, ...]]:
    number = NUMBERS[activation]
    total, y, means, rstd = _NORMALISE[norm.centred](x, residual, gain, bias, eps, number, norm.residual, norm.centred)
    return y, total, (x if total is None else total, gain, bias, means, rstd, number)


def _backward(norm: Norm, kept: tuple[Any, ...], dy: Array, d_total: Array | None,
              needs: Sequence[bool]) -> tuple[Array | None, ...]:
    *arrays, number = kept
    gradients: tuple[Array | None, ...] = _DIFFERENTIATE[norm.centred](*arrays, dy, d_total, number, *needs)
    return gradients


def attach() -> None:
    """Add the rules to the operators."""
    for norm, op in OPERATORS.items():
        op.add(rule(norm, "compiled", _forward, _backward, _supports), backend="numpy")
