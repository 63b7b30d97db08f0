"""Operators that change only the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import Above0


@op("x: real[*shape] -> like x")
def clip_gradient(x: Tensor, *, limit: Above0) -> Tensor:
    """`x` itself, with each entry of its gradient kept within -limit .. limit.

    Between the time steps of a recurrent network it bounds the gradient that flows back in time, as in Graves (2013,
    section 2.1). It differs from the clipping of weight gradients after the pullback (see `duoln.optim`). Where the
    limit is reached, the result is not the derivative of a function.

    Shape:
        x (...) -> the same.

    Raises:
        UsageError: the limit is not a finite number above 0.
    """


def _forward(be: Backend, x: Array, limit: float) -> tuple[Array, Any]:
    return x, limit


def _vjp(be: Backend, limit: float, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (be.minimum(be.maximum(gout, -limit), limit),)


clip_gradient.add(Rule("composed", _forward, _vjp))
