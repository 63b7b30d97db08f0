"""The common part of the rules of `linear` and `matmul`.

The gradients of a weight and of a bias are one product over the rows of all uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.product.multiply import multiply_and_sum, multiply_pieces

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


def without_bias(linear: Rule) -> Rule:
    """A rule of `linear` as one of `matmul`, which it supports where the right side is a matrix."""
    forward, vjp = linear.forward, linear.vjp
    assert vjp is not None

    def matmul_forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
        return forward(be, x, y, None)

    def matmul_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> Sequence[Array | None]:
        return vjp(be, saved, gout, (*needs, False))[:_BIAS]

    return Rule(linear.name, matmul_forward, matmul_vjp, linear.supports,
                {k: function for k, function in linear.pooled.items() if k != _BIAS}, factors=linear.factors)
