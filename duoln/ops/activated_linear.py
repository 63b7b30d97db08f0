"""A product with a weight, its bias and an activation, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.ops.elementwise import relu, tanh
from duoln.ops.linalg import linear, linear_forward, linear_vjp
from duoln.ops.norm import Activation

_FUNCTIONS = {"relu": relu, "tanh": tanh}


@op("x: real[*rows, n_in], weight: real[n_in, n_out], bias: real[n_out]? -> like x")
def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation) -> Tensor:
    """relu(x @ weight + bias), or its tanh: the value before the activation is not kept.

    A fused rule has the slope of tanh from its value, 1 - tanh^2, which has few digits where tanh is near 1.

    Where no rule of the backend computes both at once, it is `linear` and the activation, each with its own rules.
    A weight that is used at many time steps has one product for its gradient with `linear`, and one a use here.

    Shape:
        x (..., in), weight (in, out), bias (out,) or None -> (..., out).

    Raises:
        ShapeError: the sizes do not fit.
    """
    activated_linear.check(x, weight, bias)
    if len(activated_linear.rules(x.backend.name)) == 1:
        return _FUNCTIONS[activation](linear(x, weight, bias))
    return activated_linear.apply(x, weight, bias, activation=activation)


def _forward(be: Backend, x: Array, weight: Array, bias: Array | None, *, activation: str) -> tuple[Array, Any]:
    y, saved = linear_forward(be, x, weight, bias)
    y = be.maximum(y, 0.0) if activation == "relu" else be.tanh(y)
    return y, (saved, y, activation)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    of_linear, y, activation = saved
    before = be.where(y > 0, gout, 0.0) if activation == "relu" else gout * (1.0 - y * y)
    return linear_vjp(be, of_linear, before, needs)


activated_linear.add(Rule("composed", _forward, _vjp))
