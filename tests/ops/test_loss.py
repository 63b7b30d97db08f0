"""Losses of logits far from zero: an offset that all logits of a row share changes neither the loss nor the gradient."""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only
from duoln.errors import ShapeError
from duoln.testing import check_error

OFFSETS = (0.0, 1024.0, 16384.0)


def _plain(logits, labels):
    return ops.softmax_cross_entropy(logits, labels)


def _linear(logits, labels):
    """The logits are a product's: a row of x has one 1."""
    rows, classes = logits.shape
    return ops.linear_cross_entropy(duoln.tensor(np.eye(rows, dtype=np.float32), logits.backend), logits,
                                    duoln.tensor(np.zeros(classes, np.float32), logits.backend), labels)


def _log_softmax(logits, labels):
    return -ops.take_along_axis(ops.log_softmax(logits), ops.expand_dims(labels, axis=-1), -1)[..., 0]


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("loss", [_plain, _linear, _log_softmax])
@pytest.mark.parametrize("shape", [(3, 10), (40, 1000)], ids=str)
def test_the_digits_stay(be, shape, loss, composed, rng):
    plain = (np.round(rng.standard_normal(shape) * 256) / 256).astype(np.float32)  # so that adding an offset rounds nothing
    labels = duoln.tensor(rng.integers(0, shape[1], shape[0]).astype(np.int32), be)

    def run(offset):
        def total(logits):
            losses = loss(logits, labels)
            return ops.sum(losses), losses

        (_, losses), gradient = duoln.value_and_grad(total, has_aux=True)(duoln.tensor(plain + np.float32(offset), be))
        return losses.numpy(), gradient.numpy()

    if composed:
        with composed_only():
            results = [run(offset) for offset in OFFSETS]
    else:
        results = [run(offset) for offset in OFFSETS]
    for losses, gradient in results[1:]:
        np.testing.assert_allclose(losses, results[0][0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(gradient, results[0][1], rtol=1e-4, atol=1e-6)


LOSSES = {"plain": ops.softmax_cross_entropy, "smooth": lambda x, labels, **a: ops.softmax_cross_entropy(x, labels, **a, label_smoothing=0.1),
          "weighted": lambda x, labels, **a: ops.softmax_cross_entropy(x, labels, **a, class_weights=ops.full(5, 2.0, x.backend)),
          "16 bits": lambda x, labels, **a: ops.softmax_cross_entropy(x.astype("bfloat16"), labels, **a).astype("float32"),
          "linear": lambda x, labels, **a: ops.linear_cross_entropy(x, ops.eye(5, backend=x.backend), ops.zeros(5, x.backend), labels, **a)}


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_label_that_is_no_class_is_refused_or_makes_its_row_nan(name, composed, be, rng):
    """Beside it others keep their loss and gradient, and an ignored row stays 0."""
    x, loss = duoln.tensor(rng.standard_normal((6, 5)).astype(np.float32), be), LOSSES[name]
    for ignored, stray in product(({}, {"ignore_index": -7}), (5, -1, -2, 2**31 - 1, -2**31)):
        given = np.array([0, stray, 4, 1, -7 if ignored else 2, stray], np.int32)
        right = np.where(given == stray, 3, given).astype(np.int32)

        def run(labels, ignored=ignored):
            def total(x):
                losses = loss(x, duoln.tensor(labels, be), **ignored)
                return ops.sum(losses), losses
            (_, losses), gradient = duoln.value_and_grad(total, has_aux=True)(x)
            return losses.numpy(), gradient.numpy()

        with composed_only() if composed else nullcontext():
            if be.name == "numpy":
                check_error(ShapeError, lambda run=run, given=given: run(given), "labels: expected indices in 0 .. 4", f"found {stray}")
                continue
            for mine, expected in zip(run(given), run(right), strict=True):
                expected[given == stray] = np.nan
                np.testing.assert_allclose(mine, expected, rtol=1e-6)
                assert not ignored or not mine[4].any()
