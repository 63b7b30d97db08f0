"""Losses of logits far from zero: an offset that all logits of a row share changes neither the loss nor the gradient."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only

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
