"""Additive attention: many queries of the same values, large scores, and arrays that do not fit."""

import numpy as np
import pytest

from duoln import ops, runtime, tensor, to_tensors, value_and_grad
from duoln.errors import DtypeError, ShapeError
from duoln.testing import check_close, check_error

B, T, A, M = 3, 5, 4, 2


def _arrays(dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {"query": (B, A), "key": (B, T, A), "value": (B, T, M), "score_vector": (A,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}, \
        np.arange(T) < np.array([[5], [2], [1]])


def _steps(p, mask, count):
    """Queries that depend on the context before them: the loss of so many."""
    query, total = p["query"], 0.0
    for k in range(count):
        context, weights = ops.additive_attention(query, p["key"], p["value"], p["score_vector"], mask)
        query = ops.concat(context, query[:, :2], axis=1)
        total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
    return total


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_gradient_of_many_queries_is_that_of_simple_operators(be, count):
    arrays, mask = _arrays(np.float64)
    numpy = runtime.backend("numpy")

    def plain(p, mask):
        query, total = p["query"], 0.0
        for k in range(count):
            compared = ops.tanh(p["key"] + ops.expand_dims(query, axis=1))
            scores = ops.sum(compared * p["score_vector"], axis=2)
            weights = ops.softmax(ops.where(mask, scores, -1e30), axis=1)
            context = ops.sum(ops.expand_dims(weights, axis=2) * p["value"], axis=1)
            query = ops.concat(context, query[:, :2], axis=1)
            total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
        return total

    wide = to_tensors((arrays, mask), numpy)
    expected, slopes = value_and_grad(plain)(*wide)
    narrow = to_tensors(({k: a.astype(np.float32) for k, a in arrays.items()}, mask), be)
    value, gradients = value_and_grad(lambda p, mask: _steps(p, mask, count))(*narrow)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for name in arrays:
        check_close(gradients[name].numpy(), slopes[name].numpy(), 1e-5, name)


def test_scores_may_be_large(be):
    arrays, mask = _arrays()
    arrays["score_vector"] *= 1e4
    p, t = to_tensors((arrays, mask), be)
    value, gradients = value_and_grad(lambda p: _steps(p, t, 3))(p)
    assert np.isfinite(float(value)) and all(np.isfinite(g.numpy()).all() for g in gradients.values())


def test_a_masked_step_has_no_weight_and_no_gradient(be):
    arrays, mask = _arrays()
    p, t = to_tensors((arrays, mask), be)
    weights = ops.additive_attention(p["query"], p["key"], p["value"], p["score_vector"], t)[1].numpy()
    assert (weights[~mask] == 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    _, gradients = value_and_grad(lambda p: _steps(p, t, 2))(p)
    assert not gradients["key"].numpy()[~mask].any() and not gradients["value"].numpy()[~mask].any()


@pytest.mark.parametrize(("name", "shape"), [
    ("query", (B, A + 1)), ("query", (B + 1, A)), ("score_vector", (A, 1)), ("value", (B, T + 1, M)), ("value", (B, T)),
    ("key", (B, A)), ("key", (B, 0, A))])
def test_shapes_that_do_not_fit(numpy_backend, name, shape):
    arrays, mask = _arrays()
    p, t = to_tensors(({**arrays, name: np.zeros(shape, np.float32)}, mask), numpy_backend)
    call = lambda mask: ops.additive_attention(p["query"], p["key"], p["value"], p["score_vector"], mask)  # noqa: E731
    check_error(ShapeError, lambda: call(t), "additive_attention", name, str(shape))
    check_error(DtypeError, lambda: call(tensor(mask.astype(np.int32), numpy_backend)), "bool", "int32")
