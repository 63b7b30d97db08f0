"""`vjp`, gradients by several arguments, of methods, and of functions with gradients of their own."""

import pickle
from functools import partial

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import CallError, CompileError, DtypeError, GradientError, ShapeError
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
    assert (duoln.value_and_grad(loss, argnums=2)(w, 2.0, x=x)[1].numpy() == d_x.numpy()).all()
    check_error(CallError, lambda: duoln.value_and_grad(loss, argnums=2)(w, 2.0), "argument 2", "loss")
    check_error(CallError, lambda: duoln.value_and_grad(loss, argnums=(0, 0)), "argnums", "(0, 0)")


class Model:
    power = 2.0

    @duoln.value_and_grad
    def loss(self, params, x):
        return ops.sum(params ** self.power * x)

    @duoln.value_and_grad
    def shifted(self, params, offset=None):
        moved = params if offset is None else params - offset
        return ops.sum(moved * moved)

    @partial(duoln.value_and_grad, has_aux=True)
    def with_aux(self, params):
        return ops.sum(params * self.power), self.power

    @duoln.value_and_grad
    @staticmethod
    def alone(params):
        return ops.sum(params)

    @duoln.compile
    def compiled(self, params):
        return params * self.power

    of_operator = duoln.value_and_grad(ops.sum)


class Cubic(Model):
    power = 3.0

    @duoln.value_and_grad
    def loss(self, params, x):
        return ops.sum(params * x)


def of(result):
    value, gradient = result
    return value.item(), gradient.tolist()


def test_the_gradient_of_a_method(be):
    w, x = duoln.tensor([1.0, 2.0], be), duoln.tensor([10.0, 20.0], be)
    model, cubic = Model(), Cubic()
    assert of(model.loss(w, x)) == of(model.loss(params=w, x=x)) == (90.0, [20.0, 80.0])
    assert of(cubic.loss(w, x)) == (50.0, [10.0, 20.0])
    assert of(super(Cubic, cubic).loss(w, x)) == (170.0, [30.0, 240.0])
    assert of(model.shifted(w)) == (5.0, [2.0, 4.0]) and of(model.shifted(w, x)) == (405.0, [-18.0, -36.0])
    (value, aux), gradient = cubic.with_aux(w)
    assert (value.item(), aux, gradient.tolist()) == (9.0, 3.0, [3.0, 3.0])
    assert of(model.alone(w)) == of(Model.alone(w)) == of(model.of_operator(w)) == (3.0, [1.0, 1.0])


def test_what_is_not_bound_stays_the_object():
    assert Model.of_operator is Model.__dict__["of_operator"] is Model().of_operator
    assert Model.loss is Model.__dict__["loss"] and Model.loss.__name__ == "value_and_grad(loss)"


def test_a_bound_gradient_pickles_with_its_object(be):
    again = pickle.loads(pickle.dumps(Cubic().shifted))
    assert of(again(duoln.tensor([1.0, 2.0], be))) == (5.0, [2.0, 4.0])


def test_a_compiled_step_takes_the_bound_method(be):
    w, model = duoln.tensor([1.0, 2.0], be), Cubic()
    check_error(CompileError, lambda: model.compiled(w), "'self'", "Cubic", "duoln.compile(self.step)")
    step = duoln.compile(duoln.compile(model.shifted))
    for _ in range(4):
        assert of(step(w)) == (5.0, [2.0, 4.0])


def test_the_unbound_gradient_says_what_it_takes(be):
    with pytest.raises(duoln.errors.DuolnError):
        Model.loss(Model(), duoln.tensor([1.0], be), duoln.tensor([1.0], be))


@duoln.custom_gradient
def product(pair, w, times=2.0):
    """Times * a * b * w, with three times the gradient of `a`, and none of `b`."""
    y = pair["a"] * pair["b"] * w * times

    def back(g):
        return {"a": 3.0 * times * g * pair["b"] * w, "b": None}, times * g * pair["a"] * pair["b"], None

    return y, back


@duoln.custom_gradient
def both(x):
    return (x * 2.0, ops.exp(x)), lambda gs: gs[0] * 10.0 + gs[1] * 100.0


def _args(be, rng):
    a, b, w = (rng.standard_normal((4, 3)).astype(np.float32) for _ in range(3))
    return duoln.to_tensors({"a": a, "b": b}, be), duoln.tensor(w, be), (a, b, w)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_gradient_is_that_of_the_function(be, rng, compiled):
    pair, w, (a, b, host) = _args(be, rng)

    def step(pair, w):
        return duoln.value_and_grad(lambda pair, w: ops.sum(product(pair, w, 4.0) * w), argnums=(0, 1))(pair, w)

    step = duoln.compile(step) if compiled else step
    for _ in range(5):
        value, (d_pair, d_w) = step(pair, w)
        np.testing.assert_allclose(value.item(), np.sum(4 * a * b * host * host), rtol=1e-4)
        np.testing.assert_allclose(d_pair["a"].numpy(), 12 * host * b * host, rtol=1e-5)
        np.testing.assert_array_equal(d_pair["b"].numpy(), 0)
        np.testing.assert_allclose(d_w.numpy(), 8 * a * b * host, rtol=1e-5)


def test_outputs_that_nothing_uses_have_zeros(be):
    x = duoln.tensor([1.0, 2.0], be)
    assert duoln.value_and_grad(lambda x: ops.sum(both(x)[0]))(x)[1].tolist() == [10.0, 10.0]
    assert duoln.value_and_grad(lambda x: ops.sum(both(x)[0] + both(x)[1]))(x)[1].tolist() == [110.0, 110.0]
    first, second = both(x)
    assert first.tolist() == [2.0, 4.0] and second.shape == (2,)


@pytest.mark.parametrize(("function", "kind", "words"), [
    (lambda x: x, DtypeError, ("pair (y, back)", "Tensor")),
    (lambda x: (1.0, lambda g: g), DtypeError, ("tensor or a tuple of tensors", "1.0")),
    (lambda x: (x, lambda g: g[:1]), ShapeError, ("shape (2,)", "(1,)")),
    (lambda x: (x, lambda g: g.astype("int32")), DtypeError, ("float32", "int32")),
    (lambda x: (x, lambda g: {"x": g}), ShapeError, ("one tensor", "x")),
    (lambda x: (x, lambda g: 1.0), DtypeError, ("tensor or None", "1.0")),
])
def test_wrong_functions_are_told(numpy_backend, function, kind, words):
    x = duoln.tensor([1.0, 2.0], numpy_backend)
    own = duoln.custom_gradient(function)
    check_error(kind, lambda: duoln.value_and_grad(lambda x: ops.sum(own(x)))(x), "custom_gradient", *words)


def test_wrong_calls_of_custom_gradients(numpy_backend):
    x = duoln.tensor([1.0, 2.0], numpy_backend)
    check_error(CallError, lambda: both(1.0), "both", "tensors among the arguments")
    check_error(DtypeError, lambda: duoln.custom_gradient(3), "function")
    one = duoln.custom_gradient(lambda x, y: (x * y, lambda g: g))
    check_error(DtypeError, lambda: duoln.value_and_grad(lambda x: ops.sum(one(x, x)))(x), "tuple of 2 gradients")
