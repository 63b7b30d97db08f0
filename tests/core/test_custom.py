"""Functions with gradients of their own, beside the gradient that the operators give."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import CallError, DtypeError, ShapeError
from duoln.testing import check_error


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


def test_a_compiled_step_follows_values_that_change(be, rng):
    step = duoln.compile(lambda x: duoln.value_and_grad(lambda x: ops.sum(both(x)[1]))(x)[1])
    for k in range(6):
        x = duoln.tensor(rng.standard_normal(3 + k // 4).astype(np.float32), be)
        np.testing.assert_array_equal(step(x).numpy(), 100.0)


def test_outputs_that_nothing_uses_have_zeros(be):
    x = duoln.tensor([1.0, 2.0], be)
    assert duoln.value_and_grad(lambda x: ops.sum(both(x)[0]))(x)[1].tolist() == [10.0, 10.0]
    assert duoln.value_and_grad(lambda x: ops.sum(both(x)[0] + both(x)[1]))(x)[1].tolist() == [110.0, 110.0]
    first, second = both(x)
    assert first.tolist() == [2.0, 4.0] and second.shape == (2,)


def test_16_bits_come_back_in_16_bits(be):
    x = duoln.tensor([1.0, 2.0], be, dtype="float16")
    value, d_x = duoln.value_and_grad(lambda x: ops.sum(both(x)[0].astype("float32")))(x)
    assert d_x.dtype == "float16" and d_x.tolist() == [10.0, 10.0] and value.item() == 6.0


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


def test_wrong_calls_are_told(numpy_backend):
    x = duoln.tensor([1.0, 2.0], numpy_backend)
    check_error(CallError, lambda: both(1.0), "both", "tensors among the arguments")
    check_error(DtypeError, lambda: duoln.custom_gradient(3), "function")
    one = duoln.custom_gradient(lambda x, y: (x * y, lambda g: g))
    check_error(DtypeError, lambda: duoln.value_and_grad(lambda x: ops.sum(one(x, x)))(x), "tuple of 2 gradients")
