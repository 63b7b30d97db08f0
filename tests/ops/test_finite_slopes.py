"""A slope is finite where its exact value is: no partial product or quotient overflows or vanishes before it.

A gradient that is not finite is clipped, or ends where relu is 0.
"""

from fractions import Fraction

import numpy as np
import pytest

import duoln
from duoln import ops, tensor, value_and_grad
from duoln.errors import DtypeError, UsageError
from duoln.testing import check_error

ROWS = {"ratios of likelihoods": [0.1] * 60 + [10.0] * 60, "large, then small": [1e30, 1e30, 1e-30, 1e-30],
        "small, then large": [1e-30, -1e-30, 1e30, 1e30, 3.0], "a zero first": [0.0, *[8.0] * 30, *[0.125] * 30],
        "two zeros": [0.0, 1e30, 1e30, 0.0], "negative": [-2.0, 3.0, -4.0], "one": [5.0], "denormal": [1e-40, 1e20, 1e10],
        "far beyond float64": [1e30] * 20 + [1e-30] * 20}


def products(values):
    """The product, and for each value that of the others, of exact fractions."""
    parts = [Fraction(float(v)) for v in values]

    def product(some):
        total = Fraction(1)
        for part in some:
            total *= part
        return float(total)

    return product(parts), [product(parts[:k] + parts[k + 1:]) for k in range(len(parts))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", ROWS)
def test_a_product_of_finite_products(be, row, dtype):
    values = np.array(ROWS[row], dtype)
    value, slopes = products(values)
    for x in (values, np.stack([values, values[::-1]])):
        y, dx = duoln.value_and_grad(lambda x: ops.sum(ops.prod(x, axis=-1)))(duoln.tensor(x, be))
        rtol, least = (1e-6, 1.2e-38) if dtype == "float32" else (1e-13, 0)
        np.testing.assert_allclose(y.item(), value * (x.ndim), rtol=rtol, atol=least)
        np.testing.assert_allclose(dx.numpy(), slopes if x.ndim == 1 else [slopes, slopes[::-1]], rtol=rtol, atol=least)


def test_a_product_with_infinities_and_nan(be):
    rows = np.float32([[np.inf, 2.0, -1.0], [np.inf, 0.0, 1.0], [np.nan, 1.0, 0.0], [3e38, 10.0, 1.0], [1e-30, 1e-30, 1.0]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ops.prod(duoln.tensor(rows, be), axis=1).numpy(),
                                      np.float32([-np.inf, np.nan, np.nan, np.inf, 0.0]))


def test_the_slope_of_a_product_with_an_extreme_factor_behind_it(be):
    """The gradient that comes in belongs to the product: 1e-30 times 1e60 fits."""
    x = duoln.tensor(np.float32([1e-20, 1e30, 1e30]), be)
    with np.errstate(over="ignore"):
        _, dx = duoln.value_and_grad(lambda x: ops.prod(x) * 1e-30)(x)
    np.testing.assert_allclose(dx.numpy(), [1e30, 1e-20, 1e-20], rtol=1e-5)


@pytest.mark.parametrize(("x", "y", "g", "right"), [
    (0.0, 1e-20, 1e20, 0.0), (0.0, 1e-30, 1e30, 0.0), (1e-10, 1e-5, 1e36, -1e36), (1e20, 1e20, 1.0, -1e-20), (1e-30, 1e-30, 1.0, -1e30),
    (1e-38, 1e-20, 1e20, -1e22), (2.0, 4.0, 1.0, -0.125), (1e20, 1e30, 1e38, -1e-2),
    (1e-20, 1e-20, 0.0, 0.0)])
def test_the_slope_of_a_divisor(be, x, y, g, right):
    x, y = (duoln.tensor(np.float32([v, 1.0]), be) for v in (x, y))
    _, dy = duoln.value_and_grad(lambda y: ops.sum(x / y * duoln.tensor(np.float32([g, 1.0]), be)))(y)
    np.testing.assert_allclose(dy.numpy(), [right, -1.0], rtol=1e-5)


# Gradients that are clipped or end --------------------------------------------------------------------

def test_gradients_are_clipped_entry_by_entry(be):
    x = tensor(np.array([1.0, -2.0, 3.0], np.float32), be)
    weights = tensor(np.array([0.5, -30.0, 30.0], np.float32), be)
    value, gradient = value_and_grad(lambda x: ops.sum(ops.clip_gradient(x, limit=10.0) * weights))(x)
    assert float(value) == 0.5 + 60 + 90
    assert gradient.numpy().tolist() == [0.5, -10.0, 10.0]


def test_limits_and_dtypes_that_are_refused(numpy_backend):
    x = tensor(np.ones(3, np.float32), numpy_backend)
    check_error(UsageError, lambda: ops.clip_gradient(x, limit=0.0), "[clip_gradient]", "0.0")
    check_error(UsageError, lambda: ops.clip_gradient(x, limit=float("inf")), "[clip_gradient]", "inf")
    integers = tensor(np.ones(3, np.int32), numpy_backend)
    check_error(DtypeError, lambda: ops.clip_gradient(integers, limit=1.0), "[clip_gradient] expected a float dtype, found int32")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("operator", ["layer_norm", "activated_linear", "relu"])
def test_a_gradient_that_is_not_finite_ends_where_relu_is_zero(operator, value, be, rng):
    x = tensor(rng.standard_normal((4, 67)).astype(np.float32), be)
    gain = tensor(np.ones(67, np.float32), be)
    run = {"layer_norm": lambda x: ops.layer_norm(x, gain, gain * 0, activation="relu"), "relu": ops.relu,
           "activated_linear": lambda x: ops.activated_linear(x, tensor(np.eye(67, dtype=np.float32), be), gain * 0, activation="relu")}
    y = run[operator](x)
    weights = np.ones((4, 67), np.float32)
    weights[y.numpy() == 0] = value
    with np.errstate(invalid="ignore"):  # of the loss itself, where 0 is multiplied
        gradient = value_and_grad(lambda x: ops.sum(run[operator](x) * tensor(weights, be)))(x)[1].numpy()
    expected = value_and_grad(lambda x: ops.sum(run[operator](x)))(x)[1].numpy()
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
