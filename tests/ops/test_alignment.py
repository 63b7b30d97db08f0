"""Additive attention: many questions to one memory, large scores, and arrays that do not fit."""

import numpy as np
import pytest

from duoln import ops, runtime, tensor, to_tensors, value_and_grad
from duoln.errors import DtypeError, ShapeError
from duoln.testing import check_close, check_error

B, T, A, M = 3, 5, 4, 2


def _arrays(dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {"question": (B, A), "keys": (B, T, A), "vector": (A,), "memory": (B, T, M)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}, \
        np.arange(T) < np.array([[5], [2], [1]])


def _steps(p, there, count):
    """Questions that depend on what was found: the loss of as many."""
    question, total = p["question"], 0.0
    for k in range(count):
        context, weights = ops.additive_attention(question, p["keys"], p["vector"], p["memory"], there)
        question = ops.concat(context, question[:, :2], axis=1)
        total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
    return total


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_gradient_of_many_questions_is_that_of_simple_operators(be, count):
    arrays, there = _arrays(np.float64)
    numpy = runtime.backend("numpy")

    def plain(p, there):
        question, total = p["question"], 0.0
        for k in range(count):
            compared = ops.tanh(p["keys"] + ops.expand_dims(question, axis=1))
            scores = ops.sum(compared * p["vector"], axis=2)
            weights = ops.softmax(ops.where(there, scores, -1e30), axis=1)
            context = ops.sum(ops.expand_dims(weights, axis=2) * p["memory"], axis=1)
            question = ops.concat(context, question[:, :2], axis=1)
            total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
        return total

    wide = to_tensors((arrays, there), numpy)
    expected, slopes = value_and_grad(plain)(*wide)
    narrow = to_tensors(({k: a.astype(np.float32) for k, a in arrays.items()}, there), be)
    found, gradients = value_and_grad(lambda p, there: _steps(p, there, count))(*narrow)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    for name in arrays:
        check_close(gradients[name].numpy(), slopes[name].numpy(), 1e-5, name)


def test_scores_may_be_large(be):
    arrays, there = _arrays()
    arrays["vector"] *= 1e4
    p, t = to_tensors((arrays, there), be)
    value, gradients = value_and_grad(lambda p: _steps(p, t, 3))(p)
    assert np.isfinite(float(value)) and all(np.isfinite(g.numpy()).all() for g in gradients.values())


def test_what_is_not_there_has_no_weight_and_no_gradient(be):
    arrays, there = _arrays()
    p, t = to_tensors((arrays, there), be)
    weights = ops.additive_attention(p["question"], p["keys"], p["vector"], p["memory"], t)[1].numpy()
    assert (weights[~there] == 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    _, gradients = value_and_grad(lambda p: _steps(p, t, 2))(p)
    assert not gradients["keys"].numpy()[~there].any() and not gradients["memory"].numpy()[~there].any()


@pytest.mark.parametrize(("name", "shape"), [
    ("question", (B, A + 1)), ("question", (B + 1, A)), ("vector", (A, 1)), ("memory", (B, T + 1, M)), ("memory", (B, T)),
    ("keys", (B, A)), ("keys", (B, 0, A))])
def test_shapes_that_do_not_fit(numpy_backend, name, shape):
    arrays, there = _arrays()
    p, t = to_tensors(({**arrays, name: np.zeros(shape, np.float32)}, there), numpy_backend)
    call = lambda there: ops.additive_attention(p["question"], p["keys"], p["vector"], p["memory"], there)  # noqa: E731
    check_error(ShapeError, lambda: call(t), "additive_attention", name, str(shape))
    check_error(DtypeError, lambda: call(tensor(there.astype(np.int32), numpy_backend)), "bool", "int32")
