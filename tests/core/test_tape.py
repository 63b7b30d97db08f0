"""value_and_grad: values, trees, errors, and one product for a weight that is used many times."""

import gc
import weakref
from typing import Literal

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.core import Rule, derived, op
from duoln.errors import DtypeError, GradientError, UsageError
from duoln.testing import check_error


def _t(be, x, dtype="float32"):
    return duoln.tensor(np.asarray(x), be, dtype)


def test_value_and_gradients_have_the_form_of_the_parameters(be):
    params = {"a": [_t(be, [1.0, 2.0]), _t(be, 3.0)], "b": (_t(be, [[4.0]]),)}
    value, grads = duoln.value_and_grad(lambda p: ops.sum(p["a"][0]) * p["a"][1] + ops.sum(p["b"][0]))(params)
    assert value.item() == 13.0 and value.node is None
    assert isinstance(grads["b"], tuple)
    np.testing.assert_array_equal(grads["a"][0].numpy(), [3.0, 3.0])
    assert grads["a"][1].item() == 3.0 and grads["a"][1].shape == ()
    np.testing.assert_array_equal(grads["b"][0].numpy(), [[1.0]])


def test_every_name_of_an_argument_is_free(be):
    """Wrappers take the arguments of the user's function, whose names may be those of the wrappers' own."""
    w = duoln.tensor([1.0, 2.0], be)

    class Scaled(nn.Module):
        def __call__(this, params, x, self):
            return x * self

    def loss(weights, x, params=None, args=None, kwargs=None, fn=None, self=None, has_aux=None):
        return ops.sum(weights * x * next(e for e in (params, args, kwargs, fn, self, has_aux) if e is not None))

    for name in ("params", "args", "kwargs", "fn", "self", "has_aux"):
        value, gradient = duoln.value_and_grad(loss)(w, w, **{name: w})
        assert value.item() == 9.0 and gradient.tolist() == [1.0, 4.0], name
        assert duoln.compile(loss)(w, w, **{name: w}).item() == 9.0, name
    model, told = Scaled(), []
    with duoln.observed(model, lambda path, layer, output: told.append(output.tolist())):
        model({}, w, self=w)
    assert told == [[1.0, 4.0]]

    @op("self: real[*size] -> like self")
    def function(self, *, op: Literal["square", "exp"] = "exp", be: bool = False):
        """An operator."""

    function.add(derived(lambda self, *, op, be: getattr(ops, op)(self)))
    assert function(self=w, op="square").tolist() == [1.0, 4.0] and function.explain(self=w)
    check_error(UsageError, lambda: function(w, op="log"), "[function] expected op 'square' or 'exp', found 'log'")


GRADIENTS = {  # a function, where it is differentiated, and its gradient there
    "a parameter that is not used": (lambda p: ops.sum(p["used"]), {"used": [1.0], "unused": [1.0, 2.0]}, {"used": [1.0], "unused": [0.0, 0.0]}),
    "a constant": (lambda x: duoln.tensor(1.0, x.backend), [1.0], [0.0]), "used twice": (lambda x: ops.sum(x * x + x), [3.0], [7.0]),
    "itself": (lambda x: x, 2.0, 1.0), "stop_gradient": (lambda x: ops.sum(x * duoln.stop_gradient(x)), [3.0], [3.0]),
    "a comparison": (lambda x: ops.sum(ops.where(ops.logical_not(x > 1.5), x, 3.0 * x)), [1.0, 2.0], [1.0, 3.0]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, be):
    function, place, expected = GRADIENTS[name]
    given = {key: _t(be, x) for key, x in place.items()} if isinstance(place, dict) else _t(be, place)
    assert duoln.tree.map(lambda g: g.tolist(), duoln.value_and_grad(function)(given)[1]) == expected


def test_aux_comes_back_off_the_tape(be):
    def fn(x):
        y = x * 2.0
        return ops.sum(y), {"y": y, "note": "text"}

    (value, aux), grad = duoln.value_and_grad(fn, has_aux=True)(_t(be, [1.0, 2.0]))
    assert value.item() == 6.0 and aux["note"] == "text" and aux["y"].node is None
    np.testing.assert_array_equal(grad.numpy(), [2.0, 2.0])


def test_a_gradient_inside_a_gradient_is_refused(be):
    def twice(x):
        _, grad = duoln.value_and_grad(lambda y: ops.sum(y * y))(x)
        return ops.sum(grad)

    check_error(GradientError, lambda: duoln.value_and_grad(twice)(_t(be, [1.0])), "inside a gradient", "first order")
    assert duoln.value_and_grad(lambda x: ops.sum(x))(_t(be, [1.0]))[1].numpy() == [1.0]  # nothing is left behind


def test_the_tape_is_dropped(numpy_backend):
    alive = []

    def fn(x):
        y = ops.tanh(x)
        alive.append(weakref.ref(y.data))
        return ops.sum(y * y)

    x = duoln.tensor(np.ones(1000, np.float32), numpy_backend)
    duoln.value_and_grad(fn)(x)
    gc.collect()
    assert alive[0]() is None


def test_an_op_without_a_gradient_says_so(be):
    x, rate = _t(be, [1.0]), _t(be, 0.1)
    check_error(GradientError, lambda: duoln.value_and_grad(
        lambda p: ops.sum(ops.adam_update(rate, rate, None, None, p, p, p, p, beta1=0.9, beta2=0.9)[0]))(x),
        "adam_update", "stop_gradient")


class TestManyUses:
    """A weight used at T steps costs one product over all of them."""

    def _count(self, monkeypatch, backend):
        shapes = []
        matmul = backend.matmul
        monkeypatch.setattr(backend, "matmul", lambda x, y: shapes.append((x.shape, y.shape)) or matmul(x, y))
        return shapes

    @pytest.mark.parametrize("steps", [1, 2, 7])
    def test_one_weight_product(self, monkeypatch, numpy_backend, steps, rng):
        be = numpy_backend
        w, b = _t(be, rng.standard_normal((4, 4)), "float64"), _t(be, rng.standard_normal(4), "float64")
        h0 = _t(be, rng.standard_normal((3, 4)), "float64")

        def unrolled(p):
            h = h0
            for _ in range(steps):
                h = ops.tanh(ops.linear(h, p["w"], p["b"]))
            return ops.sum(h * h)

        shapes = self._count(monkeypatch, be)
        duoln.value_and_grad(unrolled)({"w": w, "b": b})
        weight_products = [s for s in shapes if s == ((4, 3 * steps), (3 * steps, 4))]
        assert len(weight_products) == 1
        # Forward products, products for the inputs (the first input needs none), one for w, one for b.
        assert len(shapes) == steps + (steps - 1) + 2

    def test_a_derived_weight_is_pooled_too(self, monkeypatch, numpy_backend, rng):
        be = numpy_backend
        v, g = _t(be, rng.standard_normal((4, 4)), "float64"), _t(be, rng.standard_normal(4), "float64")
        h0 = _t(be, rng.standard_normal((3, 4)), "float64")

        def unrolled(v, g):
            w, h = ops.weight_norm(v, g), h0
            for _ in range(5):
                h = ops.tanh(h @ w)
            return h

        shapes = self._count(monkeypatch, be)
        duoln.value_and_grad(lambda p: ops.sum(unrolled(*p)))((v, g))
        assert [s for s in shapes if s[0] == (4, 15)] == [((4, 15), (15, 4))]
        duoln.testing.gradcheck(unrolled, v, g)


class TestRules:
    def test_the_first_rule_that_supports_the_input_runs(self, be):
        @op
        def twice(x):
            return twice.apply(x)

        twice.add(Rule("composed", lambda be, x: (x + x, None), lambda be, s, g, n: (g + g,)))
        twice.add(Rule("fast", lambda be, x: (2 * x, None), lambda be, s, g, n: (2 * g,),
                       lambda be, x: None if x.shape[0] < 3 else "too long"), backend=be.name)
        assert twice.explain(_t(be, [1.0])) == [("fast", "runs")]
        assert twice.explain(_t(be, [1.0] * 4)) == [("fast", "too long"), ("composed", "runs")]
        for n in (1, 4):
            value, grad = duoln.value_and_grad(lambda x: ops.sum(twice(x)))(_t(be, [1.0] * n))
            assert value.item() == 2.0 * n and set(grad.numpy()) == {2.0}
        with duoln.core.composed_only():
            assert twice.explain(_t(be, [1.0])) == [("composed", "runs")]

    def test_a_rule_may_have_several_outputs(self, be):
        @op
        def both(x):
            return both.apply(x)

        def vjp(be, saved, gouts, needs):
            a, b = gouts
            assert b is None  # nothing used it
            return (3 * a,)

        both.add(Rule("composed", lambda be, x: ((3 * x, 5 * x), None), vjp))
        _, grad = duoln.value_and_grad(lambda x: ops.sum(both(x)[0]))(_t(be, [1.0]))
        assert grad.numpy() == [3.0]


@pytest.mark.parametrize("value", [lambda x: ops.argmax(x), lambda x: ops.sum(x) > 0])
def test_a_value_without_a_gradient_is_refused(be, value):
    check_error(DtypeError, lambda: duoln.value_and_grad(value)(_t(be, [1.0, 2.0])), "[value_and_grad]", "float value")


def test_ten_thousand_operators(be):
    def chain(p):
        for _ in range(10_000):
            p = p + 1.0
        return ops.sum(p)

    assert duoln.value_and_grad(chain)(_t(be, [2.0]))[1].tolist() == [1.0]
