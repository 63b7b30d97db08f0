"""Softmax and its logarithm along the last axis on the CPU, compiled: three passes over a row, which stays in cache."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.kernels import native
from duoln.kernels.launch import Launch, fused
from duoln.ops import log_softmax, softmax

_TEXT = "softmax/softmax"
_softmax = Launch(_TEXT, "softmax_forward", "x: real[*rows, width], logarithm: int32 -> y: like x")
_gradient = Launch(_TEXT, "softmax_backward", "y: real[*rows, width], dy: like y, logarithm: int32 -> dx: like y")


def _supports(be: Backend, x: Array, axis: int) -> str | None:
    if axis != x.ndim - 1:
        return "it is for the last axis"
    return native.refusal(f"{_TEXT}.cpp", x.dtype) if x.size else "there are no values"


def attach(backend: str) -> None:
    """Add the rules to `softmax` and `log_softmax`."""
    for logarithm, op in enumerate((softmax, log_softmax)):
        def forward(be: Backend, x: Array, axis: int, logarithm: int = logarithm) -> tuple[Array, Array]:
            y = _softmax[be.name](x, logarithm)
            return y, y

        def vjp(be: Backend, y: Array, gout: Array, needs: Sequence[bool], logarithm: int = logarithm) -> tuple[Array]:
            return (_gradient[be.name](y, gout, logarithm),)

        fused(op, forward, vjp, _softmax, _supports)(backend)
