"""Indices that count from the end: the same entry, and the gradient at that entry."""

from contextlib import nullcontext

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only
from duoln.errors import ShapeError
from duoln.testing import check_error


def _gradient(be, fn, x):
    return duoln.value_and_grad(lambda t: ops.sum(fn(t) * fn(t)))(duoln.tensor(x, be))[1].numpy()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_indices_that_count_from_the_end(be, rng, axis):
    """The same entry and the gradient at that entry; the gradients of a row that is taken by both its numbers are added."""
    x = rng.standard_normal((4, 4, 4)).astype(np.float32)
    for op, plain, indices in ((ops.take_along_axis, np.take_along_axis, rng.integers(0, 4, x.shape).astype(np.int32)),
                               (ops.take, np.take, np.array([3, 3, 0, 0, 2, 3], np.int32))):
        def fn(t, chosen, op=op):
            return op(t, duoln.tensor(chosen, be), axis=axis)

        for chosen in (indices - 4, np.where(rng.random(indices.shape) < 0.5, indices, indices - 4).astype(np.int32)):
            np.testing.assert_array_equal(fn(duoln.tensor(x, be), chosen).numpy(), plain(x, indices, axis))
            np.testing.assert_allclose(_gradient(be, lambda t, i=chosen: fn(t, i), x), _gradient(be, lambda t, i=indices: fn(t, i), x), rtol=1e-6)


STRAY = (4, -5, 2**31 - 1, -2**31)
SELECTIONS = {  # of x (4, 3) by indices (6,): the function, the axes of the result whose entries one index chooses, and NumPy's function
    "take": (lambda x, i: ops.take(x, i, axis=0), lambda x, i: x[i]), "take axis 1": (lambda x, i: ops.take(x.T, i, axis=1), lambda x, i: x[i].T),
    "getitem": (lambda x, i: x[i], lambda x, i: x[i]), "embedding": (lambda x, i: ops.embedding(x, i), lambda x, i: x[i]),
    "getitem of two": (lambda x, i: x[i, ops.zeros_like(i)], lambda x, i: x[i, 0]), "getitem of one and an integer": (lambda x, i: x[i, -1], lambda x, i: x[i, 2]),
    "take_along_axis": (lambda x, i: ops.take_along_axis(x, i[:, None], axis=0) if x.shape[1] == 1 else
                        ops.take_along_axis(x, ops.stack(i, i, i, axis=1), axis=0), lambda x, i: x[i])}


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_an_index_out_of_range_is_refused_or_gives_nan_and_no_gradient(name, composed, be):
    select, plain = SELECTIONS[name]
    with composed_only() if composed else nullcontext():
        for dtype in ("float32", "float16", "bfloat16", "int32", "bool"):
            host = np.float32(np.arange(12).reshape(4, 3) % (2 if dtype == "bool" else 12))
            for stray in (*STRAY, *([-1] if name == "embedding" else [])):
                _check_stray(select, plain, host, dtype, stray, name == "take axis 1", be)


def _check_stray(select, plain, host, dtype, stray, is_last, be):
    given, right = [3, stray, 0, 1, stray, 3], np.array([3, 0, 0, 1, 0, 3])
    x, indices = duoln.tensor(host, be).astype(dtype), duoln.tensor(given, be)
    if be.name == "numpy":
        return check_error(ShapeError, lambda: select(x, indices), "expected indices in", f"found {stray}")
    y, expected, is_stray = select(x, indices), plain(host, right), np.array(given) == stray
    places = (slice(None), is_stray) if is_last else is_stray
    assert y.dtype == dtype
    if dtype in ("int32", "bool"):
        assert np.isin(y.numpy()[places], host[0]).all()  # entries at index 0
        expected[places] = y.numpy()[places]
        return np.testing.assert_array_equal(y.numpy(), expected)
    expected[places] = np.nan
    np.testing.assert_array_equal(y.numpy(), expected)
    weights = np.float32(np.arange(1, expected.size + 1).reshape(expected.shape))
    dx = duoln.value_and_grad(lambda x: ops.sum(select(x, indices).astype("float32") * duoln.tensor(weights, be)))(x)[1]
    kept = np.where(np.isnan(expected), 0, weights)
    of_numpy = duoln.value_and_grad(lambda x: ops.sum(select(x, duoln.tensor(right, "numpy")) * duoln.tensor(kept, "numpy")))
    np.testing.assert_allclose(dx.numpy(), of_numpy(duoln.tensor(host, "numpy"))[1].numpy(), rtol=1e-2)
    step = duoln.compile(select)
    assert [np.isnan(step(x, duoln.tensor(i, be)).numpy()).any() for i in (right, given)] == [False, True]
    return None


def test_an_embedding_takes_none(numpy_backend, rng):
    """An id below 0 is a mistake: padding has an id of its own."""
    table = duoln.tensor(rng.standard_normal((6, 3)).astype(np.float32), numpy_backend)
    check_error(ShapeError, lambda: ops.embedding(table, duoln.tensor([0, -1], numpy_backend)), "[embedding]", "-1")
