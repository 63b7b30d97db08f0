"""Softmax and its logarithm along the last axis on the CPU, compiled: three passes over a row, which stays in cache."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.ops import log_softmax, softmax

_FILE = "softmax/softmax.cpp"
_forward = native.launch(_FILE, "softmax_forward", "x: real[*rows, width], logarithm: int32 -> y: like x")
_backward = native.launch(_FILE, "softmax_backward",
                          "y: real[*rows, width], dy: real[*rows, width], logarithm: int32 -> dx: like y")


def _supports(be: Backend, x: Array, axis: int) -> str | None:
    if axis != x.ndim - 1:
        return "it is for the last axis"
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _rule(logarithm: int) -> Rule:
    def forward(be: Backend, x: Array, axis: int) -> tuple[Array, Array]:
        y = _forward(x, logarithm)
        return y, y

    def vjp(be: Backend, y: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
        return (_backward(y, gout, logarithm),)

    return Rule("compiled", forward, vjp, _supports)


def attach() -> None:
    """Add the rules to `softmax` and `log_softmax`."""
    softmax.add(_rule(0), backend="numpy")
    log_softmax.add(_rule(1), backend="numpy")
