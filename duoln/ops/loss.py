"""Losses, each one value per row or entry; the caller averages or sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.errors import ShapeError
from duoln.ops.common import check_beside, check_float, check_indices


@op
def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the labels under softmax(logits), in nats.

    Shape:
        logits (..., classes), labels int32 (...) in 0 .. classes - 1 -> (...).

    Raises:
        ShapeError: labels that do not fit the logits, or no classes.
    """
    check_float("softmax_cross_entropy", logits)
    check_beside("softmax_cross_entropy", "labels", labels, "int32", logits)
    if logits.ndim < 1 or logits.shape[-1] == 0 or labels.shape != logits.shape[:-1]:
        raise ShapeError(f"[softmax_cross_entropy] expected logits (..., classes) and labels (...), "
                         f"found {logits.shape} and {labels.shape}")
    check_indices("softmax_cross_entropy", "labels", labels, logits.shape[-1], logits, -logits.shape[-1])
    return softmax_cross_entropy.apply(logits, labels)


def _cross_entropy_forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, Any]:
    shifted = logits - be.max(logits, axis=-1, keepdims=True)
    total = be.sum(be.exp(shifted), axis=-1, keepdims=True)
    log_probability = shifted - be.log(total)
    picked = be.take_along_axis(log_probability, be.expand_dims(labels, -1), -1)
    return -be.squeeze(picked, -1), (log_probability, labels)


def _cross_entropy_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    if not needs[0]:
        return None, None
    log_probability, labels = saved
    chosen = be.expand_dims(labels, -1) == be.arange(log_probability.shape[-1])
    difference = be.exp(log_probability) - be.astype(chosen, be.dtype(log_probability))
    return difference * be.expand_dims(gout, -1), None


softmax_cross_entropy.add(Rule("composed", _cross_entropy_forward, _cross_entropy_vjp))


@op
def bce_with_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of targets in [0, 1] under sigmoid(logits), in nats, finite for every logit.

    Shape:
        logits and targets of one shape -> the same.

    Raises:
        ShapeError: shapes that differ.
    """
    check_float("bce_with_logits", logits, targets)
    if logits.shape != targets.shape:
        raise ShapeError(f"[bce_with_logits] expected equal shapes, found {logits.shape} and {targets.shape}")
    return bce_with_logits.apply(logits, targets)


def _bce_forward(be: Backend, logits: Array, targets: Array) -> tuple[Array, Any]:
    y = be.maximum(logits, 0.0) - logits * targets + be.log1p(be.exp(-be.abs(logits)))
    return y, (logits, targets)


def _bce_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    logits, targets = saved
    gx = gout * (0.5 * be.tanh(0.5 * logits) + 0.5 - targets) if needs[0] else None
    return gx, (-gout * logits if needs[1] else None)


bce_with_logits.add(Rule("composed", _bce_forward, _bce_vjp))
