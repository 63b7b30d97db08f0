"""`linear`, also with an activation, and `matmul` with a matrix on the CPU, compiled.

The gradients of a weight and of a bias are one product over the rows of all uses. With a few rows the weight is read
once, unpacked; BLAS copies it first: (4 x 1000)(1000 x 1000) takes it 209 to 256 us on two cores, and what the
weight's bytes take is 60 to 120 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.launch.declared import ACTIVATIONS
from duoln.kernels.linear.multiply import (
    FEW_ROWS_FILE,
    LEAST_OF_VECTOR,
    MOST_ROWS,
    differentiate,
    multiply,
    multiply_and_activate,
    multiply_and_sum,
    multiply_few_rows,
    multiply_pieces,
    refusal,
    through_activation,
)
from duoln.ops import activated_linear, linear, matmul

_BIAS = 2
"""The number of the bias among the arguments of `linear`."""


def weight_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """The gradient of a matrix that multiplied the inputs `saved[0]`. The inputs are copied, the gradients are not."""
    inputs = [merged(saved[0]) for saved, _ in uses]
    x = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    return multiply_pieces(x.T, [merged(gout) for _, gout in uses])


def bias_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """The gradient of a vector that was added to the outputs."""
    gouts = [merged(gout) for _, gout in uses]
    ones = host.ones((1, sum(len(gout) for gout in gouts)), gouts[0].dtype)
    return multiply_pieces(ones, gouts)[0]


def both_gradients(saved: Any, gout: Array) -> tuple[Array, Array]:
    """The gradients of a matrix and of a bias that were used once. That of the bias costs little beside the other."""
    return multiply_and_sum(merged(saved[0]).T, merged(gout))


def merged(x: Array) -> Array:
    """All axes but the last as one."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _without_bias(linear: Rule) -> Rule:
    """A rule of `linear` as one of `matmul`, which it supports where the right side is a matrix."""
    forward, vjp = linear.forward, linear.vjp
    assert vjp is not None

    def matmul_forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
        return forward(be, x, y, None)

    def matmul_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> Sequence[Array | None]:
        return vjp(be, saved, gout, (*needs, False))[:_BIAS]

    return Rule(linear.name, matmul_forward, matmul_vjp, linear.supports,
                {k: function for k, function in linear.pooled.items() if k != _BIAS}, factors=linear.factors)


LEAST_WEIGHTS = 1 << 16
"""A smaller weight costs less than a call of its own saves."""


def _few_rows_supports(be: Backend, x: Array, weight: Array, bias: Array | None = None) -> str | None:
    """The reason why these rules cannot run; None if they can."""
    if weight.ndim != 2:
        return "the right side is no matrix"
    if weight.size < LEAST_WEIGHTS:
        return f"it is for weights of at least {LEAST_WEIGHTS} values"
    if not 0 < prod(x.shape[:-1]) <= MOST_ROWS:
        return f"it is for 1 to {MOST_ROWS} rows"
    if not weight.flags.c_contiguous:
        return "the weight is not contiguous"
    return native.refusal(FEW_ROWS_FILE, x.dtype)


def _few_rows_forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    y = host.empty((*x.shape[:-1], weight.shape[1]), x.dtype)
    multiply_few_rows(x, weight, bias, y, native.threads_for(weight.nbytes))
    return y, (x, weight)


def _few_rows_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x, weight = saved
    dx = d_weight = None
    if needs[0] or needs[1]:
        dx, d_weight = differentiate(x, weight, gout, native.threads_for(weight.nbytes), needs[0], needs[1])
    return dx, d_weight, bias_gradient(be, [(saved, gout)]) if needs[2] else None


def _factors(be: Backend, saved: Any, gout: Array) -> tuple[Array, Array]:
    """The weight's gradient, unmultiplied: Adam multiplies it out in the caches, and memory never holds it."""
    return host.as_rows(saved[0]), host.as_rows(gout)


def _supports(be: Backend, x: Array, weight: Array, bias: Array | None = None) -> str | None:
    if weight.ndim != 2:
        return "the right side is no matrix"
    if x.size * weight.shape[1] < LEAST_OF_VECTOR:  # most small products come no further
        return f"it is for at least {LEAST_OF_VECTOR} multiplications"
    reason = refusal(prod(x.shape[:-1]), weight)
    if reason is None and _few_rows_supports(be, x, weight, bias) is None:
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
    before = through_activation(saved.y, gout, ACTIVATIONS[saved.activation])
    return _vjp(be, (saved.x, saved.weight), before, needs)


def attach() -> None:
    """Add the rules to `linear`, `activated_linear` and `matmul`; later ones are tried first."""
    few_rows = Rule("compiled few rows", _few_rows_forward, _few_rows_vjp, _few_rows_supports,
                    {1: weight_gradient, 2: bias_gradient},
                    factors={1: _factors})
    product = Rule("compiled product", _forward, _vjp, _supports, pooled={1: weight_gradient, 2: bias_gradient})
    for rule in (few_rows, product):
        linear.add(rule, backend="numpy")
        matmul.add(_without_bias(rule), backend="numpy")
    activated_linear.add(Rule("compiled product", _activated_forward, _activated_vjp, _activated_supports),
                         backend="numpy")
