"""A norm of a sum: either output alone, either summand alone, what is wrong, and how it is stored."""

import numpy as np
import pytest

import duoln
from duoln import ops, value_and_grad
from duoln.errors import ShapeError
from duoln.testing import check_error

NAMES = ("add_layer_norm", "add_rms_norm")
PLAIN = {"add_layer_norm": ops.layer_norm, "add_rms_norm": ops.rms_norm}


def _loss(outputs, weights, used):
    terms = [ops.sum(out * w) for k, (out, w) in enumerate(zip(outputs, weights, strict=True)) if k in used]
    return sum(terms[1:], start=terms[0])


def _params(name, be, rng, dtype="float64"):
    shapes = ((3, 5), (3, 5), (5,), (5,))[:4 if name == "add_layer_norm" else 3]
    return [duoln.tensor(rng.standard_normal(s), be, dtype=dtype) for s in shapes]


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_either_output_are_those_of_two_operators(name, used, numpy_backend, rng):
    be = numpy_backend
    params = _params(name, be, rng)
    weights = [duoln.tensor(rng.standard_normal((3, 5)), be, dtype="float64") for _ in range(2)]

    def fused(p):
        return _loss(getattr(ops, name)(*p), weights, used)

    def apart(p):
        total = p[0] + p[1]
        return _loss((PLAIN[name](total, *p[2:]), total), weights, used)

    value, gradients = value_and_grad(fused)(params)
    expected, expected_gradients = value_and_grad(apart)(params)
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-13)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(gradients[0].numpy(), gradients[1].numpy())


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_one_argument_alone(name, which, be, rng):
    params = _params(name, be, rng, "float32")
    weights = [duoln.tensor(rng.standard_normal((3, 5)).astype(np.float32), be) for _ in range(2)]

    def loss(p, *constants):
        return _loss(getattr(ops, name)(*constants[:which], p, *constants[which:]), weights, (0, 1))

    alone = value_and_grad(loss)(params[which], *params[:which], *params[which + 1:])[1]
    whole = value_and_grad(lambda p: _loss(getattr(ops, name)(*p), weights, (0, 1)))(params)[1][which]
    np.testing.assert_allclose(alone.numpy(), whole.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_that_both_summands_share_is_not_overwritten(name, be, rng):
    """One summand is used once more, and one tensor is both summands: a sum in place would change the second one."""
    x, r = (duoln.tensor(rng.standard_normal((3, 5)).astype(np.float32), be) for _ in range(2))

    def loss(p):
        y, total = getattr(ops, name)(*p)
        return ops.sum(y * y * y) + ops.sum(total * total) + ops.sum(p[0]) * 3.0

    dx, dr = value_and_grad(loss)([x, r])[1]
    np.testing.assert_allclose(dx.numpy(), dr.numpy() + 3.0, rtol=1e-5, atol=1e-5)
    twice = value_and_grad(lambda p: ops.sum(getattr(ops, name)(p, p)[1]))(x)[1]
    np.testing.assert_array_equal(twice.numpy(), np.full((3, 5), 2.0, np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_of_float32_stays_float32_beside_16_bits(name, numpy_backend, rng):
    """The sum is stored as the residual is, y as `x` is; y is that of the sum before it is rounded."""
    be = numpy_backend
    narrow, wide = _params(name, be, rng, "bfloat16")[0], _params(name, be, rng, "float32")[1]
    y, total = getattr(ops, name)(narrow, wide)
    assert (y.dtype, total.dtype) == ("bfloat16", "float32")
    exact = narrow.astype("float32") + wide
    np.testing.assert_array_equal(total.numpy(), exact.numpy())
    y, total = getattr(ops, name)(wide, narrow)
    assert (y.dtype, total.dtype) == ("float32", "bfloat16")
    np.testing.assert_allclose(y.numpy(), PLAIN[name](exact).numpy(), rtol=1e-5, atol=1e-6)
    gradients = value_and_grad(lambda p: ops.sum(getattr(ops, name)(*p)[1].astype("float32")))([narrow, wide])[1]
    assert [g.dtype for g in gradients] == ["bfloat16", "float32"]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_are_named(name, be):
    x, gain = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor(np.ones(5, np.float32), be)
    call = getattr(ops, name)
    check_error(ShapeError, lambda: call(x, x[:1]), f"[{name}] residual: expected the shape of x, (3, 4), found (1, 4)")
    check_error(ShapeError, lambda: call(x, x, gain), f"[{name}] last axis is 4, gain has 5")
    check_error(ShapeError, lambda: call(x[0, 0], x[0, 0]), f"[{name}] expected at least one axis, found shape ()")
    check_error(ShapeError, lambda: call(x[:, :0], x[:, :0]), f"[{name}] expected at least one value along width")
