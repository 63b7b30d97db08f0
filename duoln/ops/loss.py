"""Losses. Each gives one value per row or entry, and the caller averages or sums them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import REALS, Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import Above0, Below1, Integer
from duoln.core.spec import check_float
from duoln.errors import DtypeError, ShapeError
from duoln.ops.common import check_indices, in_index_range, indices_unchecked, nan_outside
from duoln.ops.elementwise import isinf, log, logical_and, logistic, not_equal, where
from duoln.ops.index import take
from duoln.ops.reduce import log_softmax, mean, sum
from duoln.ops.shape import expand_dims

_IGNORED = -1
"""The label of a row that does not count; a rule treats every negative label so, whatever x holds there."""
BLOCK = 1 << 22
"""The number of logits that are stored at a time: 16 MiB in float32."""


@op("logits: real[*rows, classes+], labels: int32[*rows] -> real[*rows]")
def softmax_cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: Integer | None = None,
                          class_weights: Tensor | None = None, label_smoothing: Below1 = 0.0) -> Tensor:
    """Negative log-likelihood of the labels under softmax(logits), in nats.

    Args:
        logits, labels: see Shape.
        ignore_index: the label of rows that do not count: their loss and gradient are 0, whatever their logits are.
        class_weights: by which the loss of a row is multiplied, that of its class.
        label_smoothing: the share of each label that is spread evenly over all classes (Szegedy et al. 2016).

    The mean over the rows that count is the caller's. It is 0, not NaN, where none does. The last line counts each row
    by the weight of its class:

        kept = (labels != -1).astype("float32")
        losses = ops.softmax_cross_entropy(logits, labels, ignore_index=-1)
        loss = ops.sum(losses) / ops.maximum(ops.sum(kept), 1.0)
        weighted = ops.sum(kept * ops.take(class_weights, ops.where(labels == -1, 0, labels), axis=0))

    Shape:
        logits (..., classes), labels int32 (...) in 0 .. classes - 1 or `ignore_index`, class_weights (classes,)
        -> (...).

    Raises:
        ShapeError: the labels or weights do not fit the logits, or there are no classes; on NumPy, a label is no class,
            which makes the loss and the gradient of its row NaN on a device.
        DtypeError: the labels are no integers. UsageError: the share is not in [0, 1).
    """
    name = "softmax_cross_entropy"
    if isinstance(labels, Tensor) and labels.dtype in REALS:
        raise DtypeError(f"[{name}] labels: expected an int32 tensor, found {labels.dtype}; probability_cross_entropy "
                         "takes probabilities, x.astype(\"int32\") makes classes")
    softmax_cross_entropy.check(logits, labels)
    _check_weights(name, class_weights, logits)
    counted = counted_rows(name, labels, logits, logits.shape[-1], ignore_index)
    if counted is not None:
        # In the gradient, 0 times a value that is not finite would not be 0.
        logits, labels = where(expand_dims(counted, axis=-1), logits, 0.0), where(counted, labels, 0)
    losses = softmax_cross_entropy.apply(logits, labels)
    if class_weights is not None:
        losses = _weighted(take.apply(class_weights, labels, axis=0), losses)
    if label_smoothing:
        of_all = log_softmax.apply(logits, axis=logits.ndim - 1)
        even = mean(of_all if class_weights is None else _weighted(class_weights, of_all), axis=-1)
        losses = (1.0 - label_smoothing) * losses - label_smoothing * even
    return losses if counted is None else where(counted, losses, 0.0)


def _weighted(weight: Tensor, x: Tensor) -> Tensor:
    """The product with a weight; a weight of 0 takes out an infinity too."""
    return weight * where(logical_and(weight == 0.0, isinf(x)), 0.0, x)


def _check_weights(name: str, class_weights: Tensor | None, logits: Tensor) -> None:
    if class_weights is None:
        return
    check_float(name, logits, class_weights)
    if class_weights.shape != logits.shape[-1:]:
        raise ShapeError(f"[{name}] class_weights: expected shape {logits.shape[-1:]}, found {class_weights.shape}")


@op("logits: real[*rows, classes+], probabilities: real[*rows, classes]")
def probability_cross_entropy(logits: Tensor, probabilities: Tensor, *, class_weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of distributions over classes under softmax(logits), in nats.

    It is -sum(class_weights * probabilities * log p). A class of probability 0 adds 0, also where p is 0.

    Shape:
        logits and probabilities (..., classes), class_weights (classes,) -> (...).

    Raises:
        ShapeError: the shapes differ, the weights do not fit, or there are no classes.
    """
    probability_cross_entropy.check(logits, probabilities)
    _check_weights("probability_cross_entropy", class_weights, logits)
    of_all = log_softmax.apply(logits, axis=logits.ndim - 1)
    weights = probabilities if class_weights is None else probabilities * class_weights
    return -sum(_weighted(weights, of_all), axis=-1)


def counted_rows(name: str, labels: Tensor, like: Tensor, classes: int, ignore_index: int | None) -> Tensor | None:
    """A bool tensor, True where the label is not `ignore_index`; None if every row counts.

    Raises:
        ShapeError: another label is not in 0 .. classes - 1.
    """
    if ignore_index is None:
        check_indices(name, "labels", labels, classes, like)
        return None
    counted = not_equal(labels, ignore_index)
    check_indices(name, "labels", where(counted, labels, 0), classes, like)
    return counted


def _cross_entropy_forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, Any]:
    shifted = logits - be.max(logits, axis=-1, keepdims=True)
    total = be.sum(be.exp(shifted), axis=-1, keepdims=True)
    log_probability = shifted - be.log(total)
    target = be.expand_dims(labels, -1)
    inside = in_index_range(be, target, 0, logits.shape[-1])
    picked = be.take_along_axis(log_probability, be.where(inside, target, be.zeros((), "int32")), -1)
    return -be.squeeze(nan_outside(be, inside, picked), -1), (log_probability, labels)


def _cross_entropy_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array, None]:
    log_probability, labels = saved
    chosen = be.expand_dims(labels, -1) == be.arange(log_probability.shape[-1])
    difference = be.exp(log_probability) - be.astype(chosen, be.dtype(log_probability))
    inside = in_index_range(be, labels, 0, log_probability.shape[-1])
    return difference * be.expand_dims(nan_outside(be, inside, gout), -1), None


softmax_cross_entropy.add(Rule("composed", _cross_entropy_forward, _cross_entropy_vjp))


@op("x: real[*rows, n_in], weight: real[n_in, classes+], bias: real[classes], labels: int32[*rows] -> real[*rows]")
def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *,
                         ignore_index: Integer | None = None) -> Tensor:
    """Negative log-likelihood of the labels under softmax(x @ weight + bias), in nats.

    The last layer and its loss as one operator, for a large vocabulary: the logits are computed in blocks and never
    stored as a whole. For the gradient the operator keeps one number per row, the logarithm of the sum of exponentials,
    and computes each block again. The value equals that of `linear` and `softmax_cross_entropy`, except for rounding.

    Args:
        x, weight, bias, labels: see Shape.
        ignore_index: the label of rows that do not count: their loss and gradient are 0, whatever x holds there.

    Shape:
        x (..., in), weight (in, classes), bias (classes,), labels int32 (...) in 0 .. classes - 1 or `ignore_index`
        -> (...).

    Raises:
        ShapeError: the sizes do not fit together, or there are no classes; on NumPy, a label is no class, which makes
            the loss of its row and the gradients NaN on a device.
    """
    linear_cross_entropy.check(x, weight, bias, labels)
    counted = counted_rows("linear_cross_entropy", labels, x, weight.shape[1], ignore_index)
    if indices_unchecked(labels.backend):  # a label below 0 must not count as ignored
        labels = where(labels < 0, weight.shape[1], labels)
    if counted is not None:
        labels = where(counted, labels, _IGNORED)
    return linear_cross_entropy.apply(x, weight, bias, labels)


def _linear_forward(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> tuple[Array, Any]:
    rows, classes = prod(labels.shape), weight.shape[1]
    target = be.reshape(labels, (rows, 1))
    # In the weight's gradient, 0 times a value that is not finite would not be 0.
    flat = be.where(target >= 0, be.reshape(x, (rows, weight.shape[0])), 0.0)
    step = max(BLOCK // classes, 1)
    tops, log_sums, picked = [], [], []
    for start in range(0, rows, step):
        part = slice(start, start + step)
        logits = be.matmul(flat[part], weight) + bias
        tops.append(be.max(logits, axis=-1, keepdims=True))
        log_sums.append(be.log(be.sum(be.exp(logits - tops[-1]), axis=-1, keepdims=True)))
        inside = in_index_range(be, target[part], 0, classes)
        values = be.take_along_axis(logits, be.where(inside, target[part], be.zeros((), "int32")), -1)
        picked.append(nan_outside(be, inside, values))
    if not rows:
        return be.zeros(labels.shape, be.dtype(x)), (x.shape, flat, weight, bias, target, None, None)
    # The two are kept apart: their sum would lose the digits of logits far from zero.
    largest, log_sum = be.concat(tops, axis=0), be.concat(log_sums, axis=0)
    loss = be.where(target >= 0, log_sum - (be.concat(picked, axis=0) - largest), 0.0)
    return be.reshape(loss, labels.shape), (x.shape, flat, weight, bias, target, largest, log_sum)


def _linear_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    """Compute in blocks of classes, so that each part of the weight's gradient is computed once."""
    shape, x, weight, bias, target, largest, log_sum = saved
    rows, classes = x.shape[0], weight.shape[1]
    if not rows:
        return [be.zeros(sizes, be.dtype(x)) for sizes in (shape, weight.shape, bias.shape)] + [None]
    g = be.where(target >= 0, nan_outside(be, target < classes, be.reshape(gout, (rows, 1))), 0.0)
    step = max(BLOCK // rows, 1)
    of_x, of_weight, of_bias = None, [], []
    ones = be.ones((1, rows), be.dtype(x))
    for start in range(0, classes, step):
        part = slice(start, start + step)
        probability = be.exp(be.matmul(x, weight[:, part]) + bias[part] - largest - log_sum)
        chosen = target - start == be.arange(probability.shape[1])
        d = (probability - be.astype(chosen, be.dtype(x))) * g
        if needs[0]:
            share = be.matmul(d, be.permute_dims(weight[:, part], (1, 0)))
            of_x = share if of_x is None else of_x + share
        if needs[1]:
            of_weight.append(be.matmul(be.permute_dims(x, (1, 0)), d))
        if needs[2]:
            of_bias.append(be.matmul(ones, d))
    return [None if of_x is None else be.reshape(of_x, shape), be.concat(of_weight, axis=1) if needs[1] else None,
            be.reshape(be.concat(of_bias, axis=1), (classes,)) if needs[2] else None, None]


linear_cross_entropy.add(Rule("composed", _linear_forward, _linear_vjp))


@op("logits: real[*shape], targets: real[*shape] -> real[*shape]")
def bce_with_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of targets in [0, 1] under sigmoid(logits), in nats, finite for every logit.

    Shape:
        logits and targets (...) -> the same.

    Raises:
        ShapeError: the shapes differ.
    """


def _bce_forward(be: Backend, logits: Array, targets: Array) -> tuple[Array, Any]:
    size, share = be.abs(logits), be.where(logits > 0, 1.0 - targets, targets)
    # max(x, 0) - x t: of an infinite logit that the target agrees with, 0 is left.
    y = be.where(share == 0, 0.0, size * be.where(share == 0, 1.0, share)) + be.log1p(be.exp(-size))
    return y, (logits, targets)


def _bce_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    logits, targets = saved
    dx = gout * (logistic(be, logits)[0] - targets) if needs[0] else None
    return dx, (-gout * logits if needs[1] else None)


bce_with_logits.add(Rule("composed", _bce_forward, _bce_vjp))


@op("predictions: real[*shape], targets: real[*shape] -> real[*shape]")
def squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each entry.

    Shape:
        predictions and targets (...) -> the same.

    Raises:
        ShapeError: the shapes differ.
    """


@op("predictions: real[*shape], targets: real[*shape] -> real[*shape]")
def absolute_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """Absolute error of each entry; its gradient at 0 is 0.

    Shape:
        predictions and targets (...) -> the same.
    """


@op("predictions: real[*shape], targets: real[*shape] -> real[*shape]")
def huber(predictions: Tensor, targets: Tensor, *, delta: Above0 = 1.0) -> Tensor:
    """Half the squared error of each entry up to `delta`, beyond it the tangent: delta (|error| - delta / 2).

    Huber 1964.

    Shape:
        predictions and targets (...) -> the same.

    Raises:
        ShapeError: the shapes differ. UsageError: `delta` is not above 0.
    """


def _error_loss_rule(value: Callable[..., Array], slope: Callable[..., Array]) -> Rule:
    """The composed rule of a loss of the error: `value(be, error, **attrs)`, and its slope."""

    def forward(be: Backend, predictions: Array, targets: Array, **attrs: float) -> tuple[Array, Any]:
        error = predictions - targets
        return value(be, error, **attrs), (error, attrs)

    def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
        error, attrs = saved
        gradient = gout * slope(be, error, **attrs)
        return gradient if needs[0] else None, -gradient if needs[1] else None

    return Rule("composed", forward, vjp)


def _huber(be: Backend, error: Array, delta: float) -> Array:
    size = be.abs(error)
    near = be.minimum(size, delta)
    return 0.5 * (near * near) + delta * (size - near)


squared_error.add(_error_loss_rule(lambda be, error: error * error, lambda be, error: 2.0 * error))
absolute_error.add(_error_loss_rule(lambda be, error: be.abs(error), lambda be, error: be.sign(error)))
huber.add(_error_loss_rule(_huber, lambda be, error, delta: be.maximum(be.minimum(error, delta), -delta)))


@op("log_predictions: real[*shape], probabilities: real[*shape]")
def kl_div(log_predictions: Tensor, probabilities: Tensor) -> Tensor:
    """The terms of the divergence from predictions: probabilities * (log(probabilities) - log_predictions).

    A probability of 0 adds 0 and has no gradient, one below 0 gives NaN. The sum over the classes is the
    Kullback-Leibler divergence, in nats.

    Shape:
        log_predictions and probabilities (...) -> the same; the first as `log_softmax` gives them.

    Raises:
        ShapeError: the shapes differ.
    """
    kl_div.check(log_predictions, probabilities)
    is_zero = probabilities == 0.0
    return probabilities * (log(where(is_zero, 1.0, probabilities)) - where(is_zero, 0.0, log_predictions))
