"""Losses. Each gives one value per row or entry, and the caller averages or sums them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import check_integer
from duoln.errors import ShapeError
from duoln.ops.common import check_beside, check_float, check_indices
from duoln.ops.elementwise import not_equal, where
from duoln.ops.shape import expand_dims


@op(like=(None,))
def softmax_cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int | None = None) -> Tensor:
    """Negative log-likelihood of the labels under softmax(logits), in nats.

    Args:
        logits, labels: see Shape.
        ignore_index: the label of rows that do not count: their loss and gradient are 0, whatever their logits are.

    Shape:
        logits (..., classes), labels int32 (...) in 0 .. classes - 1 or `ignore_index` -> (...).

    Raises:
        ShapeError: the labels do not fit the logits, or there are no classes.
    """
    check_float("softmax_cross_entropy", logits)
    check_beside("softmax_cross_entropy", "labels", labels, "int32", logits)
    if logits.ndim < 1 or logits.shape[-1] == 0 or labels.shape != logits.shape[:-1]:
        raise ShapeError(f"[softmax_cross_entropy] expected logits (..., classes) and labels (...), "
                         f"found {logits.shape} and {labels.shape}")
    counted = counted_rows("softmax_cross_entropy", labels, logits, logits.shape[-1], ignore_index)
    if counted is None:
        return softmax_cross_entropy.apply(logits, labels)
    # In the gradient, 0 times a value that is not finite would not be 0.
    logits = where(expand_dims(counted, axis=-1), logits, 0.0)
    return where(counted, softmax_cross_entropy.apply(logits, where(counted, labels, 0)), 0.0)


def counted_rows(name: str, labels: Tensor, like: Tensor, classes: int, ignore_index: int | None) -> Tensor | None:
    """A bool tensor, True where the label is not `ignore_index`; None if every row counts.

    Raises:
        ShapeError: another label is not in 0 .. classes - 1. DtypeError: `ignore_index` is not an integer.
    """
    if ignore_index is None:
        check_indices(name, "labels", labels, classes, like)
        return None
    counted = not_equal(labels, check_integer(name, "ignore_index", ignore_index))
    check_indices(name, "labels", where(counted, labels, 0), classes, like)
    return counted


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


@op(like=(None,))
def bce_with_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of targets in [0, 1] under sigmoid(logits), in nats, finite for every logit.

    Shape:
        logits and targets of one shape -> the same.

    Raises:
        ShapeError: the shapes differ.
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
    dx = gout * (0.5 * be.tanh(0.5 * logits) + 0.5 - targets) if needs[0] else None
    return dx, (-gout * logits if needs[1] else None)


bce_with_logits.add(Rule("composed", _bce_forward, _bce_vjp))
