"""Values of every size: results and slopes beside float64 where squares and products overflow and vanish, with float64's own digits and
range, and each digit of an activation, however small it is.
"""

import contextlib
import math
from fractions import Fraction

import numpy as np
import pytest

import duoln
from duoln import ops, optim, tensor, value_and_grad
from duoln.core import composed_only

SIZES = (1e-30, 1e-25, 1e-20, 1.0, 1e20, 1e25, 1e30)


def gradients(function, be, *arrays):
    """The gradients of the sum of a function's results by all its arguments."""
    tensors = [duoln.tensor(np.float32(a), be) for a in arrays]
    return [g.numpy() for g in duoln.value_and_grad(lambda p: ops.sum(function(*p)))(tensors)[1]]


def check_close(result, expected):
    np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=3e-6, atol=1e-44)


@pytest.mark.parametrize("size", [1e-20, 1e-12, 1.0, 1e20, 1e25])
def test_reciprocal_roots(be, size):
    x = np.float32([size, 3 * size])
    scale = np.float32(size * np.sqrt(size))  # a small slope stands beside a large gradient
    [dx] = gradients(lambda x: ops.rsqrt(x) * float(scale), be, x)
    check_close(dx, -0.5 * scale * x.astype(np.float64) ** -1.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", [-2, -1, -0.5, 0.5, 1, 2, 3, 4.5])
def test_vector_norms(be, size, order):
    x = np.float32([[3, -4, 1], [2, 2, -5]]) * np.float32(size)
    wide = np.abs(x.astype(np.float64))
    expected = np.sum(wide**order, axis=1) ** (1 / order)
    check_close(ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy(), expected)
    [dx] = gradients(lambda x: ops.vector_norm(x, axis=1, ord=order), be, x)
    check_close(dx, np.sign(x) * (wide / expected[:, None]) ** (order - 1))


@pytest.mark.parametrize("order", [-np.inf, -2, -1, -0.5, 0, 0.5, 1, 2, 3, np.inf])
def test_vector_norms_of_zeros_and_of_what_is_no_number(be, order):
    x = np.float32([[0, 4, 1], [0, 0, 0], [np.nan, 1, 0], [np.inf, 1, 2]])
    result = ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy()
    with np.errstate(all="ignore"):
        expected = np.linalg.norm(x.astype(np.float64), axis=1, ord=order)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    [dx] = gradients(lambda x: ops.vector_norm(x, axis=1, ord=order), be, x[:2])
    assert np.isfinite(dx).all() and (dx[1] == 0).all()
    assert dx[0, 0] == 0 or order == -np.inf


def test_norms_of_no_values(be):
    x = np.zeros((2, 0), np.float32)
    for order in (0, 0.5, 1, 2, 3):
        assert ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy().tolist() == [0, 0]
    assert ops.global_norm(duoln.tensor(x, be)).item() == 0


@pytest.mark.parametrize("size", SIZES)
def test_norms_of_all_gradients_and_clipping(be, size):
    g = {"a": np.float32([3 * size]), "b": np.float32([[4 * size, 0]])}
    tensors = {name: duoln.tensor(value, be) for name, value in g.items()}
    check_close(optim.global_norm(tensors).numpy(), 5 * size)
    da, db = gradients(ops.global_norm, be, *g.values())
    check_close(da, [0.6])
    check_close(db, [[0.8, 0]])
    limit = 5 * size / 10
    clipped = optim.clip_global_norm(limit)(tensors)
    check_close(clipped["a"].numpy(), g["a"] / 10)
    check_close(clipped["b"].numpy(), g["b"] / 10)
    clipped = optim.clip_each_norm(limit)(tensors)
    check_close(clipped["a"].numpy(), [limit])
    check_close(clipped["b"].numpy(), [[limit, 0]])
    for clip in (optim.clip_global_norm(50 * size), optim.clip_each_norm(50 * size)):
        np.testing.assert_array_equal(clip(tensors)["a"].numpy(), g["a"])


def test_the_norm_of_zeros_has_no_gradient_and_that_of_nan_is_nan(be):
    da, db = gradients(ops.global_norm, be, np.zeros(2), np.zeros((1, 3)))
    assert not da.any() and not db.any()
    assert np.isnan(ops.global_norm(duoln.tensor(np.float32([1, np.nan]), be), duoln.tensor(np.float32([2]), be)).item())
    assert ops.global_norm(duoln.tensor(np.float32([1, -np.inf]), be)).item() == np.inf


@pytest.mark.parametrize("size", SIZES)
def test_weight_norm(be, size):
    v, gain = np.float32([[3, 0], [4, 0]]) * np.float32(size), np.float32([10, 2])
    w = ops.weight_norm(duoln.tensor(v, be), duoln.tensor(gain, be))
    check_close(w.numpy(), [[6, 0], [8, 0]])
    dv, d_gain = gradients(lambda v, gain: ops.weight_norm(v, gain)[0], be, v, gain)
    check_close(dv[:, 0], np.array([16, -12]) / (25 * float(np.float32(size))) * 2)
    assert not dv[:, 1].any()
    check_close(d_gain, [0.6, 0])


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


@pytest.fixture
def in_float64(be):
    """The backend; a device without float64 says so where a tensor is made."""
    if "float64" not in be.dtypes:
        pytest.skip("this device has no float64")
    return be


def test_sine_and_cosine_of_every_size(in_float64):
    values = np.concatenate([np.linspace(-50, 50, 401), np.pi * np.arange(-3, 9) / 2, [1e5, -0.0, 1e9]])
    x = duoln.tensor(values, in_float64)
    np.testing.assert_allclose(ops.sin(x).numpy(), np.sin(values), rtol=0, atol=1e-15)
    np.testing.assert_allclose(ops.cos(x).numpy(), np.cos(values), rtol=0, atol=1e-15)
    assert np.signbit(ops.sin(x).numpy()[-2])


FAR = np.array([50.0, 90.0, 100.0, 200.0, 300.0])
SLOPES = {"sigmoid": (lambda p: ops.sigmoid(p), 1.0), "sigmoid below": (lambda p: ops.sigmoid(-p), -1.0),
          "tanh": (lambda p: ops.tanh(p * 0.5) * 0.5, 1.0), "softplus": (lambda p: -ops.softplus(-p), 1.0),
          "silu": (lambda p: ops.silu(-p), FAR - 1),
          "gelu": (lambda p: ops.gelu(-p / 100.0, approximate="tanh"), None)}


@pytest.mark.parametrize("name", SLOPES)
def test_a_small_slope_has_all_digits(in_float64, name):
    """Beyond 88, where float32 has none: e^-x to the digits of float64."""
    function, ratio = SLOPES[name]
    _, gradient = duoln.value_and_grad(lambda p: ops.sum(function(p)))(duoln.tensor(FAR, in_float64))
    if ratio is None:
        u = math.sqrt(2 / math.pi) * (FAR / 100 + 0.044715 * (FAR / 100) ** 3)
        du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * (FAR / 100) ** 2)
        low = 1 / (1 + np.exp(2 * u))
        right = -(low - FAR / 100 * 2 * du * low * (1 - low)) / 100
    else:
        right = ratio * np.exp(-FAR)
    np.testing.assert_allclose(gradient.numpy(), right, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rules", ["fused", "composed"])
@pytest.mark.parametrize("eps", [1e-5, 1e-20])
@pytest.mark.parametrize("size", [1e240, 1e200, 1e30, 1e-30, 1e-200])
def test_a_norm_of_values_whose_squares_are_beyond_the_dtype(in_float64, size, eps, rules):
    values = np.array([[1.0, 2.0, 3.0, 6.0], [-1.0, 0.5, 4.0, 8.0]])
    centred = values - values.mean(axis=1, keepdims=True)
    x = duoln.tensor(values * size, in_float64)
    with composed_only() if rules == "composed" else contextlib.nullcontext():
        for y, v in ((ops.layer_norm(x, eps=eps), centred), (ops.rms_norm(x, eps=eps), values)):
            deviation = np.sqrt(np.mean((v * min(size, 1.0)) ** 2, axis=1, keepdims=True) + eps * min(1 / size, 1.0) ** 2)
            np.testing.assert_allclose(y.numpy(), v * min(size, 1.0) / deviation, rtol=1e-14, atol=1e-16 * min(size, 1.0))
        np.testing.assert_allclose(ops.global_norm(x).item(), np.linalg.norm(values) * size, rtol=1e-15)


WIDE_RANGE = np.unique(np.concatenate([np.linspace(-88, 88, 3001), *(sign * np.logspace(-6, np.log10(88), 600) for sign in (-1, 1))])).astype(np.float32)
LEAST = 2.0**-119


def sigmoid(x):
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1.0) / (1.0 + power)


def each(function, x):
    return np.array([function(v) for v in x])


def gelu(x):
    """Value, slope and the greater of the terms of the slope, which has a root."""
    phi, bell = 0.5 * each(math.erfc, -x / math.sqrt(2)), np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x * phi, phi + x * bell, phi


def gelu_by_tanh(x):
    argument, slope = (math.sqrt(8 / math.pi) * term for term in (x + 0.044715 * x**3, 1 + 3 * 0.044715 * x * x))
    with np.errstate(under="ignore"):
        phi, rest = sigmoid(argument), sigmoid(-argument)
        return x * phi, phi * (1 + x * rest * slope), phi


def silu(x):
    return x * sigmoid(x), sigmoid(x) * (1 + x * sigmoid(-x)), sigmoid(x)


FUNCTIONS = {
    "elu": (ops.elu, lambda x: (np.where(x > 0, x, np.expm1(np.minimum(x, 0))), np.exp(np.minimum(x, 0)), 0)),
    "erf": (ops.erf, lambda x: (each(math.erf, x), 2 / math.sqrt(math.pi) * np.exp(-x * x), 0)),
    "exp": (ops.exp, lambda x: (np.exp(x), np.exp(x), 0)),
    "expm1": (ops.expm1, lambda x: (np.expm1(x), np.exp(x), 0)),
    "gelu": (ops.gelu, gelu),
    "gelu, tanh": (lambda x: ops.gelu(x, approximate="tanh"), gelu_by_tanh),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.125), lambda x: (np.where(x > 0, x, x / 8), np.where(x > 0, 1, 0.125), 0)),
    "relu": (ops.relu, lambda x: (np.maximum(x, 0), np.where(x > 0, 1, 0), 0)),
    "sigmoid": (ops.sigmoid, lambda x: (sigmoid(x), sigmoid(x) * sigmoid(-x), 0)),
    "silu": (ops.silu, silu),
    "softplus": (ops.softplus, lambda x: (np.logaddexp(0, x), sigmoid(x), 0)),
    "tanh": (ops.tanh, lambda x: (np.tanh(x), 4 * sigmoid(2 * x) * sigmoid(-2 * x), 0)),
}


def units_away(result, expected, size):
    """The error in units in the last place of the greatest of the expected value, `size` and, beyond 80, 2^-100.

    A backend may take what is below 2^-126 for 0, and its product with a large value is then 0 too.
    """
    error = np.abs(result.astype(np.float64) - expected) - LEAST
    return error / (np.maximum(np.maximum(np.abs(expected), size), np.where(np.abs(WIDE_RANGE) > 80, 2.0**-100, 0)) * 2.0**-23)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_slopes_keep_their_digits(name, be):
    function, exact = FUNCTIONS[name]
    value, slope, size = exact(WIDE_RANGE.astype(np.float64))
    x = duoln.tensor(WIDE_RANGE, be)
    with np.errstate(over="ignore"):  # in the sum, which nobody reads
        y, dx = function(x).numpy(), duoln.value_and_grad(lambda x: ops.sum(function(x)))(x)[1].numpy()
    allowed = np.full(WIDE_RANGE.shape, 5.0 if name == "gelu" else 4.0)
    if name == "gelu, tanh":  # its docstring: the rounding of the cube grows with it
        allowed += 2 * np.minimum(np.abs(math.sqrt(8 / math.pi) * (WIDE_RANGE + 0.044715 * WIDE_RANGE**3)), 88)
    if be.name == "mlx":  # on a CPU the error of its exponential grows with the size of the exponent
        allowed += 60
    for result, expected in ((y, value), (dx, slope)):
        with np.errstate(all="ignore"):
            away = units_away(result, expected, size if expected is slope else 0) / allowed
        worst = np.nanargmax(away)
        assert away[worst] <= 1, (WIDE_RANGE[worst], result[worst], expected[worst])
