"""Softmax cross-entropy on the CPU, compiled: the logits stay, and two numbers a row are kept beside them."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.ops import softmax_cross_entropy

_FILE = "softmax_cross_entropy/softmax_cross_entropy.cpp"

_losses = native.launch(_FILE, "cross_entropy_forward",
                        "logits: real[*rows, classes], labels: int32[*rows] "
                        "-> loss: real[*rows], largest: real[*rows], total: real[*rows]")
_differentiate = native.launch(_FILE, "cross_entropy_backward",
                               "logits: real[*rows, classes], labels: int32[*rows], largest: real[*rows], "
                               "total: real[*rows], d_loss: real[*rows] -> d_logits: like logits")


def _supports(be: Backend, logits: Array, labels: Array) -> str | None:
    return native.failure(_FILE, logits.dtype) if logits.size else "there are no logits"


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, tuple[Array, ...]]:
    loss, largest, total = _losses(logits, labels)
    return loss, (logits, labels, largest, total)


def _vjp(be: Backend, saved: tuple[Array, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    return _differentiate(*saved, gout) if needs[0] else None, None


def attach() -> None:
    """Add the rule to `softmax_cross_entropy`."""
    softmax_cross_entropy.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
