"""float64 has its own digits and its own range, on every backend that has the dtype."""

import contextlib
import math

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only

POINTS = np.array([0.1, 0.7, 1.3, 2.5, -3.1, 10.0, -0.001, 30.0])
RIGHT = {"exp": np.exp, "expm1": np.expm1, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
         "erf": np.vectorize(math.erf), "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
         "softplus": lambda v: np.log1p(np.exp(-abs(v))) + np.maximum(v, 0), "silu": lambda v: v / (1 + np.exp(-v)),
         "gelu": lambda v: v / 2 * np.vectorize(math.erfc)(-v / math.sqrt(2)),
         "elu": lambda v: np.where(v > 0, v, np.expm1(v)),
         "softmax": lambda v: np.exp(v - v.max()) / np.exp(v - v.max()).sum(),
         "log_softmax": lambda v: v - v.max() - np.log(np.exp(v - v.max()).sum())}


@pytest.fixture
def in_float64(be):
    """The backend; a device without float64 says so where a tensor is made."""
    if "float64" not in be.dtypes:
        pytest.skip("this device has no float64")
    return be


@pytest.mark.parametrize("name", RIGHT)
def test_a_function_has_all_digits(in_float64, name):
    y = getattr(ops, name)(duoln.tensor(POINTS, in_float64))
    assert y.dtype == "float64"
    rounding = np.finfo(np.float64).eps if name == "log_softmax" else 0  # of the sum, whose logarithm may be near 0
    np.testing.assert_allclose(y.numpy(), RIGHT[name](POINTS), rtol=3e-14, atol=rounding)


def test_the_exponential_has_the_range_of_the_dtype(in_float64):
    values = np.array([100.0, 300.0, 709.7, -200.0, -700.0, 0.0, np.inf, -np.inf, np.nan])
    np.testing.assert_allclose(ops.exp(duoln.tensor(values, in_float64)).numpy(), np.exp(values), rtol=1e-15)


def test_sine_and_cosine_of_every_size(in_float64):
    values = np.concatenate([np.linspace(-50, 50, 401), np.pi * np.arange(-3, 9) / 2, [1e5, -0.0, 1e9]])
    x = duoln.tensor(values, in_float64)
    np.testing.assert_allclose(ops.sin(x).numpy(), np.sin(values), rtol=0, atol=1e-15)
    np.testing.assert_allclose(ops.cos(x).numpy(), np.cos(values), rtol=0, atol=1e-15)
    assert np.signbit(ops.sin(x).numpy()[-2])


def test_a_gradient_that_is_right_passes_its_check(in_float64):
    x = duoln.tensor(POINTS[:4], in_float64)
    assert duoln.testing.gradcheck(lambda p: ops.sum(ops.exp(ops.sin(p)) * ops.cos(p) + ops.erf(p)), x) < 1e-6


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
