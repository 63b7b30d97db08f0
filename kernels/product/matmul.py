"""The rule of `matmul` with a matrix that a rule of `linear` gives, which is a matmul and a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule

_BIAS = 2
"""The number of the bias among the arguments of `linear`."""


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
