"""Softmax and its logarithm along the last axis on the CPU, and softmax cross-entropy on the CPU and on CUDA, compiled.

Of cross-entropy the logits stay, and two numbers a row are kept beside them; where there is no compiler, the
probabilities are kept instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.launch import Launch, fused
from duoln.kernels.launch.declared import Layout
from duoln.ops import log_softmax, softmax, softmax_cross_entropy

_LOSS_TEXT = "softmax/softmax_cross_entropy"
_NARROW, _ROWS = 1024, 4


def _plan(rows: int, classes: int) -> Layout:
    """For few classes a warp works on a row, for many classes a block does."""
    if classes <= _NARROW:
        return Layout((-(-rows // _ROWS),), (32, _ROWS), {"THREADS": 32})
    return Layout((rows,), (256, 1), {"THREADS": 256})


_losses = Launch(_LOSS_TEXT, "cross_entropy_forward", "logits: stored[*rows, classes], labels: int32[*rows] "
                 "-> loss: real[*rows], largest: real[*rows], total: real[*rows]", _plan)
_loss_gradient = Launch(_LOSS_TEXT, "cross_entropy_backward", "logits: stored[*rows, classes], labels: int32[*rows], "
                   "largest: real[*rows], total: real[*rows], d_loss: real[*rows] or one "
                   "-> d_logits: like logits", _plan)


def _loss_forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, tuple[Array, ...]]:
    loss, largest, total = _losses[be.name](logits, labels)
    return loss, (logits, labels, largest, total)


def _loss_vjp(be: Backend, saved: tuple[Array, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    return _loss_gradient[be.name](*saved, gout) if needs[0] else None, None


class _Probabilities(NamedTuple):
    """The values that the rule without a compiler keeps."""

    probability: Array
    target: Array
    shape: tuple[int, ...]


def _interpreted_supports(be: Backend, logits: Array, labels: Array) -> str | None:
    return None if logits.size else "there are no logits"


def _interpreted_forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, _Probabilities]:
    rows, classes = prod(logits.shape[:-1]), logits.shape[-1]
    target = np.reshape(labels, rows)
    probability = np.reshape(logits, (rows, classes))
    probability = probability - probability.max(axis=1, keepdims=True)
    picked = probability[np.arange(rows), target]
    np.exp(probability, out=probability)
    total = probability @ np.ones((classes, 1), probability.dtype)
    probability /= total
    return (np.log(total[:, 0]) - picked).reshape(labels.shape), _Probabilities(probability, target, logits.shape)


def _interpreted_vjp(be: Backend, saved: _Probabilities, gout: Array,
                     needs: Sequence[bool]) -> tuple[Array | None, None]:
    if not needs[0]:
        return None, None
    d_loss = np.reshape(gout, -1)
    d_logits = saved.probability * d_loss[:, None]
    d_logits[np.arange(len(d_loss)), saved.target] -= d_loss
    return d_logits.reshape(saved.shape), None


_attach_loss = fused(softmax_cross_entropy, _loss_forward, _loss_vjp, _losses, names={"cupy": "cuda row"})


_TEXT = "softmax/softmax"
_softmax = Launch(_TEXT, "softmax_forward", "x: real[*rows, width], logarithm: int32 -> y: like x")
_gradient = Launch(_TEXT, "softmax_backward", "y: real[*rows, width], dy: like y, logarithm: int32 -> dx: like y")


def _supports(be: Backend, x: Array, axis: int) -> str | None:
    if axis != x.ndim - 1:
        return "it is for the last axis"
    return native.refusal(f"{_TEXT}.cpp", x.dtype) if x.size else "there are no values"


def attach(backend: str) -> None:
    """Add the rules to `softmax`, `log_softmax` and `softmax_cross_entropy`; later ones are tried first."""
    if backend == "numpy":
        softmax_cross_entropy.add(Rule("interpreted", _interpreted_forward, _interpreted_vjp, _interpreted_supports),
                                  backend="numpy")
    _attach_loss(backend)
    for logarithm, op in enumerate((softmax, log_softmax)):
        def forward(be: Backend, x: Array, axis: int, logarithm: int = logarithm) -> tuple[Array, Array]:
            y = _softmax[be.name](x, logarithm)
            return y, y

        def vjp(be: Backend, y: Array, gout: Array, needs: Sequence[bool], logarithm: int = logarithm) -> tuple[Array]:
            return (_gradient[be.name](y, gout, logarithm),)

        fused(op, forward, vjp, _softmax, _supports)(backend)
