"""Operators that change nothing but the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import ABOVE_0, check_number
from duoln.ops.common import check_float


@op
def clip_gradient(x: Tensor, *, limit: float) -> Tensor:
    """`x` itself, with each entry of its gradient kept within -limit .. limit.

    Put on the edges between the steps of a recurrent network it bounds what is handed back in time, as Graves
    (2013, section 2.1) does; clipping the gradients of the weights afterwards is another thing (see `duoln.optim`).
    The result is not the derivative of anything where the limit is reached.

    Shape:
        x (...) -> the same.

    Raises:
        UsageError: a limit that is not a finite number above 0.
    """
    check_float("clip_gradient", x)
    return clip_gradient.apply(x, limit=float(check_number("clip_gradient", "limit", limit, ABOVE_0)))


def _forward(be: Backend, x: Array, limit: float) -> tuple[Array, Any]:
    return x, limit


def _vjp(be: Backend, limit: float, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (be.minimum(be.maximum(gout, -limit), limit),)


clip_gradient.add(Rule("composed", _forward, _vjp))
