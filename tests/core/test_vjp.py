"""`vjp`, and gradients by several arguments."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import CallError, DtypeError, GradientError, ShapeError
from duoln.testing import check_error


@pytest.fixture
def arrays(be, rng):
    return [duoln.tensor(rng.standard_normal(shape), be, "float32") for shape in ((3, 4), (4, 5), (3, 5))]


def test_gradients_of_all_arguments(arrays, be):
    x, w, dy = arrays
    y, back = duoln.vjp(ops.matmul, x, w)
    np.testing.assert_allclose(y.numpy(), x.numpy() @ w.numpy(), rtol=1e-5)
    for _ in range(2):  # as often as one likes
        d_x, d_w = back(dy)
        np.testing.assert_allclose(d_x.numpy(), dy.numpy() @ w.numpy().T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(d_w.numpy(), x.numpy().T @ dy.numpy(), rtol=1e-4, atol=1e-5)
    assert y.node is None and d_x.backend is be


def test_trees_and_constants(be):
    w, ids = duoln.tensor([[1.0, 2.0], [3.0, 4.0]], be), duoln.tensor([1], be)
    result, back = duoln.vjp(lambda p, ids, n: {"y": ops.take(p["w"], ids, axis=0) * n, "unused": p["w"] + 1.0, "n": n}, {"w": w}, ids, 3)
    gradients = back({"y": ops.ones_like(result["y"]), "unused": None, "n": None})
    assert gradients[0]["w"].tolist() == [[0, 0], [3, 3]] and gradients[1:] == (None, None)


def test_a_walk_that_gives_its_memory_away_repeats(be, rng):
    """The compiled LSTM's gradient overwrites what it kept; a second one has the same bits."""
    layer = duoln.nn.LSTM(3, 4, norm="layer")
    params = duoln.to_tensors(layer.init(0), be)
    y, back = duoln.vjp(lambda p, x: layer(p, x)[0], params, duoln.tensor(rng.standard_normal((5, 2, 3)), be, "float32"))
    (first, _), (second, _) = back(ops.ones_like(y)), back(ops.ones_like(y))
    for a, b in zip(duoln.tree.leaves(first), duoln.tree.leaves(second), strict=True):
        assert (a.numpy() == b.numpy()).all()


def test_wrong_gradients(arrays):
    x, w, dy = arrays
    _, back = duoln.vjp(ops.matmul, x, w)
    check_error(ShapeError, lambda: back(x), "[vjp] gradient", "(3, 5)", "(3, 4)")
    check_error(DtypeError, lambda: back(1.0), "[vjp] gradient", "float")
    check_error(DtypeError, lambda: back(dy.astype("float16")), "[vjp] gradient", "float32", "float16")
    check_error(ShapeError, lambda: back((dy, dy)), "[vjp] gradient", "one tensor", "0, 1")
    check_error(GradientError, lambda: duoln.value_and_grad(lambda x: duoln.vjp(ops.matmul, x, w)[0].sum())(x), "first order")


def test_value_and_grad_by_inputs_and_parameters(arrays):
    x, w, _ = arrays

    def loss(w, scale, x):
        return (x @ w).sum() * scale

    value, (d_x, d_w) = duoln.value_and_grad(loss, argnums=(2, 0))(w, 2.0, x)
    assert value.item() == pytest.approx(2 * (x.numpy() @ w.numpy()).sum(), rel=1e-4)
    np.testing.assert_allclose(d_x.numpy(), np.broadcast_to(2 * w.numpy().sum(1), (3, 4)), rtol=1e-4, atol=1e-5)
    assert d_w.shape == (4, 5)
    _, only = duoln.value_and_grad(loss, argnums=2)(w, 2.0, x)
    assert (only.numpy() == d_x.numpy()).all()
    check_error(CallError, lambda: duoln.value_and_grad(loss, argnums=2)(w, 2.0, x=x), "argument 2", "by position")
    check_error(CallError, lambda: duoln.value_and_grad(loss, argnums=(0, 0)), "argnums", "(0, 0)")
