"""ReLU and leaky ReLU on the CPU, compiled: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.ops import leaky_relu, relu

_FILE = "relu/relu.cpp"

_relu = native.launch(_FILE, "relu_forward", "x: real[*size] -> y: like x")
_relu_gradient = native.launch(_FILE, "relu_backward", "kept: real[*size], dy: real[*size] -> dx: like kept")
_leaky = native.launch(_FILE, "leaky_relu_forward", "x: real[*size], slope: float64 -> y: like x")
_leaky_gradient = native.launch(_FILE, "leaky_relu_backward",
                                "kept: real[*size], dy: real[*size], slope: float64 -> dx: like kept")


class _Saved(NamedTuple):
    kept: Array
    """Values that are positive where x is: with a slope above 0 the results, which the next operator keeps as well."""
    slope: float


def _supports(be: Backend, x: Array, slope: float = 0.0) -> str | None:
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array) -> tuple[Array, Array]:
    y = _relu(x)
    return y, y


def _vjp(be: Backend, saved: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_relu_gradient(saved, gout),)


def _leaky_forward(be: Backend, x: Array, slope: float) -> tuple[Array, _Saved]:
    y = _leaky(x, slope)
    return y, _Saved(y if slope > 0 else x, slope)


def _leaky_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_leaky_gradient(saved.kept, gout, saved.slope),)


def attach() -> None:
    """Add the rules to `relu` and `leaky_relu`."""
    relu.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
    leaky_relu.add(Rule("compiled", _leaky_forward, _leaky_vjp, _supports), backend="numpy")
