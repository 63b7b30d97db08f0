"""Infinity, NaN, zeros of both signs, large and small values: what the array API standard says, beside NumPy in float64."""

import math

import numpy as np
import pytest
from ops.test_array_api import EXPRESSIONS

import duoln
from duoln import ops

V = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1.5, -1.5, 2.5, -2.5, 88, -88, 1e20, -1e20, 3e38, -3e38,
                1e-20, -1e-20, 0.75, -0.25, 7, -8, 2e-38])
X, Y = (a.reshape(-1) for a in np.meshgrid(V, V))
WITH_INF = ("hypot", "logaddexp")
FINITE = ("floor_divide", "remainder")


def check_same(result, expected, *arguments):
    """NaN at the same places, zeros of the same sign, and values that agree to 2e-5."""
    if expected.dtype != bool:
        with np.errstate(over="ignore", under="ignore"):
            expected = expected.astype(np.float32)
        zero = (expected == 0) & (result == 0)
        np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]), str([a[zero] for a in arguments]))
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-37, err_msg=str(arguments))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def of_numpy(name):
    return getattr(np, {"pow": "power"}.get(name, name))


@pytest.mark.parametrize("name", ["abs", "ceil", "cos", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "negative", "round", "sign", "sin", "sqrt", "square", "tanh"])
def test_functions_of_one_tensor(name, be):
    check_same(getattr(ops, name)(duoln.tensor(V, be)).numpy(), of_numpy(name)(V.astype(np.float64)), V)


BINARY = ["add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "multiply", "not_equal", "pow", "subtract"]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name, be):
    check_same(getattr(ops, name)(duoln.tensor(X, be), duoln.tensor(Y, be)).numpy(), of_numpy(name)(X.astype(np.float64), Y.astype(np.float64)), X, Y)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_a_tensor_and_a_number(name, be):
    """A power has a finite exponent, or a base above 0."""
    of_ours, x = getattr(ops, name), duoln.tensor(V, be)
    for number in map(float, V):
        if name != "pow" or math.isfinite(number):
            check_same(of_ours(x, number).numpy(), of_numpy(name)(V.astype(np.float64), np.full(V.shape, number)), V)
        if name != "pow" or 0 < number < math.inf:
            check_same(of_ours(number, x).numpy(), of_numpy(name)(np.full(V.shape, number), V.astype(np.float64)), V)


@pytest.mark.parametrize("name", ["log10", "log2", "positive", "reciprocal", "signbit", "trunc"])
def test_expressions_of_one_tensor(name, be):
    values = V[1:] if name == "signbit" else V  # the sign of NaN is not looked at
    result = eval(EXPRESSIONS[name], {"ops": ops, "math": math, "x": duoln.tensor(values, be)}).numpy()
    check_same(result, of_numpy(name)(values.astype(np.float64)), values)


@pytest.mark.parametrize("name", WITH_INF)
def test_expressions_of_two_tensors(name, be):
    result = eval(EXPRESSIONS[name], {"ops": ops, "math": math, "x": duoln.tensor(X, be), "y": duoln.tensor(Y, be)}).numpy()
    check_same(result, of_numpy(name)(X.astype(np.float64), Y.astype(np.float64)), X, Y)


@pytest.mark.parametrize("name", FINITE)
def test_expressions_of_finite_values(name, be):
    plain = (np.abs(X) < 100) & (np.abs(Y) < 100) & (np.abs(Y) > 0.1) & ((np.abs(X) > 0.1) | (X == 0))
    x, y = X[plain], Y[plain]
    result = eval(EXPRESSIONS[name], {"ops": ops, "math": math, "x": duoln.tensor(x, be), "y": duoln.tensor(y, be)}).numpy()
    np.testing.assert_array_equal(result, of_numpy(name)(x, y))


def test_maximum_and_minimum_of_nan(be):
    seen = np.isnan(X) | np.isnan(Y)
    x, y = duoln.tensor(X, be), duoln.tensor(Y, be)
    for function, of_host in ((ops.maximum, np.maximum), (ops.minimum, np.minimum)):
        np.testing.assert_array_equal(function(x, y).numpy(), of_host(X, Y))
        assert np.isnan(function(x, y).numpy()[seen]).all()


def test_python_scalars_beside_bools(be):
    host = np.array([[True, False], [False, True]])
    x = duoln.tensor(host, be)
    for number in (True, False, np.True_, np.False_):
        for result, expected in ((ops.logical_and(x, number), host & number), (ops.logical_and(number, x), host & number),
                                 (ops.logical_or(x, number), host | number), (ops.logical_or(number, x), host | number),
                                 (x & number, host & number), (number & x, host & number), (x | number, host | number), (number | x, host | number)):
            assert result.dtype == "bool"
            np.testing.assert_array_equal(result.numpy(), expected)
    for wrong in (1, 0.0, None):
        with pytest.raises(duoln.errors.DtypeError, match=r"\[logical_and\] y: expected a bool tensor"):
            ops.logical_and(x, wrong)
    with pytest.raises(duoln.errors.DtypeError, match=r"\[logical_or\] x: expected a bool tensor, found float32"):
        ops.logical_or(duoln.tensor([1.0], be), True)
