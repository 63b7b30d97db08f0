"""Softmax cross-entropy on the CPU and on CUDA: the logits stay, and two numbers a row are kept beside them."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import Launch, fused
from duoln.kernels.launch.declared import Layout
from duoln.ops import softmax_cross_entropy

_TEXT = "softmax_cross_entropy/softmax_cross_entropy"
_NARROW, _ROWS = 1024, 4


def _plan(rows: int, classes: int) -> Layout:
    """For few classes a warp works on a row, for many classes a block does."""
    if classes <= _NARROW:
        return Layout((-(-rows // _ROWS),), (32, _ROWS), {"THREADS": 32})
    return Layout((rows,), (256, 1), {"THREADS": 256})


_losses = Launch(_TEXT, "cross_entropy_forward", "logits: stored[*rows, classes], labels: int32[*rows] "
                 "-> loss: real[*rows], largest: real[*rows], total: real[*rows]", _plan)
_gradient = Launch(_TEXT, "cross_entropy_backward", "logits: stored[*rows, classes], labels: int32[*rows], "
                   "largest: real[*rows], total: real[*rows], d_loss: real[*rows] or one "
                   "-> d_logits: like logits", _plan)


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, tuple[Array, ...]]:
    loss, largest, total = _losses[be.name](logits, labels)
    return loss, (logits, labels, largest, total)


def _vjp(be: Backend, saved: tuple[Array, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    return _gradient[be.name](*saved, gout) if needs[0] else None, None


attach = fused(softmax_cross_entropy, _forward, _vjp, _losses, names={"cupy": "cuda row"})
