"""`linear`, also with an activation, and `matmul` with a matrix, of more than a few rows on the CPU, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.activation import NUMBERS
from duoln.kernels.linear.cpu import supports as few_rows_supports
from duoln.kernels.product.multiply import (
    LEAST_OF_VECTOR,
    multiply,
    multiply_and_activate,
    refusal,
    through_activation,
)
from duoln.kernels.product.uses import bias_gradient, both_gradients, merged, weight_gradient, without_bias
from duoln.ops import activated_linear, linear, matmul


def _supports(be: Backend, x: Array, weight: Array, bias: Array | None = None) -> str | None:
    if weight.ndim != 2:
        return "the right side is no matrix"
    if x.size * weight.shape[1] < LEAST_OF_VECTOR:  # most small products come no further
        return f"it is for at least {LEAST_OF_VECTOR} multiplications"
    reason = refusal(prod(x.shape[:-1]), weight)
    if reason is None and few_rows_supports(be, x, weight, bias) is None:
        return "a rule for few rows runs"
    return reason


def _forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    y = multiply(merged(x), weight, added=bias)
    return y.reshape(*x.shape[:-1], weight.shape[1]), (x, weight)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x, weight = saved
    d_x = multiply(merged(gout), weight.T).reshape(x.shape) if needs[0] else None
    if needs[1] and needs[2]:
        return d_x, *both_gradients(saved, gout)
    return (d_x, weight_gradient(be, [(saved, gout)]) if needs[1] else None,
            bias_gradient(be, [(saved, gout)]) if needs[2] else None)


class _Activated(NamedTuple):
    x: Array
    weight: Array
    y: Array
    activation: str


def _activated_supports(be: Backend, x: Array, weight: Array, bias: Array | None, *, activation: str) -> str | None:
    return refusal(prod(x.shape[:-1]), weight)


def _activated_forward(be: Backend, x: Array, weight: Array, bias: Array | None, *,
                       activation: str) -> tuple[Array, _Activated]:
    y = multiply_and_activate(merged(x), weight, bias, activation)
    y = y.reshape(*x.shape[:-1], weight.shape[1])
    return y, _Activated(x, weight, y, activation)


def _activated_vjp(be: Backend, saved: _Activated, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    before = through_activation(saved.y, gout, NUMBERS[saved.activation])
    return _vjp(be, (saved.x, saved.weight), before, needs)


def attach() -> None:
    """Add the rules to `linear`, `activated_linear` and `matmul`."""
    activated_linear.add(Rule("compiled product", _activated_forward, _activated_vjp, _activated_supports),
                         backend="numpy")
    rule = Rule("compiled product", _forward, _vjp, _supports, pooled={1: weight_gradient, 2: bias_gradient})
    linear.add(rule, backend="numpy")
    matmul.add(without_bias(rule), backend="numpy")
