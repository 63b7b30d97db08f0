"""Softmax cross-entropy over a large vocabulary: the last layer and its loss as one operator.

The logits are computed in blocks and never stored as a whole. For the gradient the operator keeps one number per row,
the logarithm of the sum of exponentials, and the gradient computes each block again. The value equals that of `linear`
and `softmax_cross_entropy`, except for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import Integer
from duoln.ops.common import in_index_range, indices_unchecked, nan_outside
from duoln.ops.elementwise import where
from duoln.ops.loss import counted_rows

_IGNORED = -1
"""The label of a row that does not count; a rule treats every negative label so, whatever x holds there."""
BLOCK = 1 << 22
"""The number of logits that are stored at a time: 16 MiB in float32."""


@op("x: real[*rows, n_in], weight: real[n_in, classes+], bias: real[classes], labels: int32[*rows] -> real[*rows]")
def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *,
                         ignore_index: Integer | None = None) -> Tensor:
    """Negative log-likelihood of the labels under softmax(x @ weight + bias), in nats.

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


def _forward(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> tuple[Array, Any]:
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


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
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


linear_cross_entropy.add(Rule("composed", _forward, _vjp))
