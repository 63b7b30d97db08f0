"""Indices that count from the end: the same entry, and the gradient at that entry."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import ShapeError
from duoln.testing import check_error


def _gradient(be, fn, x):
    return duoln.value_and_grad(lambda t: ops.sum(fn(t) * fn(t)))(duoln.tensor(x, be))[1].numpy()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take_along_axis(be, rng, axis):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    from_front = rng.integers(0, x.shape[axis], (3, 4, 5)).astype(np.int32)
    for indices in (from_front - x.shape[axis], np.where(rng.random(x.shape) < 0.5, from_front,
                                                         from_front - x.shape[axis]).astype(np.int32)):
        def fn(t, chosen):
            return ops.take_along_axis(t, duoln.tensor(chosen, be), axis=axis)

        np.testing.assert_array_equal(fn(duoln.tensor(x, be), indices).numpy(),
                                      np.take_along_axis(x, from_front, axis))
        np.testing.assert_allclose(_gradient(be, lambda t, i=indices: fn(t, i), x),
                                   _gradient(be, lambda t: fn(t, from_front), x), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_take(be, rng, axis):
    """The same row by both its numbers in one call: the gradients of both are added."""
    x = rng.standard_normal((4, 4)).astype(np.float32)
    indices, from_front = np.array([-1, 3, 0, -4, 2, -1], np.int32), np.array([3, 3, 0, 0, 2, 3], np.int32)

    def fn(t, chosen):
        return ops.take(t, duoln.tensor(chosen, be), axis=axis)

    np.testing.assert_array_equal(fn(duoln.tensor(x, be), indices).numpy(), np.take(x, from_front, axis))
    np.testing.assert_allclose(_gradient(be, lambda t: fn(t, indices), x), _gradient(be, lambda t: fn(t, from_front), x),
                               rtol=1e-6)


def test_an_embedding_takes_none(numpy_backend, rng):
    """An id below 0 is a mistake: padding has an id of its own."""
    table = duoln.tensor(rng.standard_normal((6, 3)).astype(np.float32), numpy_backend)
    check_error(ShapeError, lambda: ops.embedding(table, duoln.tensor([0, -1], numpy_backend)), "[embedding]", "-1")
