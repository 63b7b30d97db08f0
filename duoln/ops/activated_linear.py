"""A product with a weight, its bias and an activation, as one operator."""

from __future__ import annotations

from typing import get_args

from duoln.core import Tensor, derived, op
from duoln.core.arguments import check_choice
from duoln.ops.elementwise import relu, tanh
from duoln.ops.linalg import check_linear, linear
from duoln.ops.norm import Activation

_FUNCTIONS = {"relu": relu, "tanh": tanh}


@op
def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation) -> Tensor:
    """relu(x @ weight + bias), or its tanh: the value before the activation is not kept.

    A weight that is used at many time steps has one product for its gradient with `linear`, and one a use here.

    Shape:
        x (..., in), weight (in, out), bias (out,) or None -> (..., out).

    Raises:
        ShapeError: the sizes do not fit.
    """
    check_choice("activated_linear", "activation", activation, get_args(Activation))
    check_linear("activated_linear", x, weight, bias)
    return activated_linear.apply(x, weight, bias, activation=activation)


activated_linear.add(derived(
    lambda x, weight, bias, *, activation: _FUNCTIONS[activation](linear(x, weight, bias))))
