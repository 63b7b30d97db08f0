"""ReLU and leaky ReLU on the CPU, compiled: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import Launch, fused
from duoln.ops import leaky_relu, relu

_TEXT = "relu/relu"
_relu = Launch(_TEXT, "relu_forward", "x: real[*size] -> y: like x")
_relu_gradient = Launch(_TEXT, "relu_backward", "kept: real[*size], dy: like kept -> dx: like kept")
_leaky = Launch(_TEXT, "leaky_relu_forward", "x: real[*size], slope: float64 -> y: like x")
_leaky_gradient = Launch(_TEXT, "leaky_relu_backward",
                         "kept: real[*size], dy: like kept, slope: float64 -> dx: like kept")


class _Saved(NamedTuple):
    kept: Array
    """Values that are positive where x is: with a slope above 0 the results, which the next operator keeps as well."""
    slope: float


def _forward(be: Backend, x: Array) -> tuple[Array, Array]:
    y = _relu[be.name](x)
    return y, y


def _vjp(be: Backend, saved: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_relu_gradient[be.name](saved, gout),)


def _leaky_forward(be: Backend, x: Array, slope: float) -> tuple[Array, _Saved]:
    y = _leaky[be.name](x, slope)
    return y, _Saved(y if slope > 0 else x, slope)


def _leaky_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_leaky_gradient[be.name](saved.kept, gout, saved.slope),)


def attach(backend: str) -> None:
    """Add the rules to `relu` and `leaky_relu`."""
    fused(relu, _forward, _vjp, _relu)(backend)
    fused(leaky_relu, _leaky_forward, _leaky_vjp, _leaky)(backend)
