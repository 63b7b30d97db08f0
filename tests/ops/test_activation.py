"""Activations and their slopes over [-88, 88] beside float64: each value keeps its digits, however small it is."""

import math

import numpy as np
import pytest

import duoln
from duoln import ops

X = np.unique(np.concatenate([np.linspace(-88, 88, 3001), *(sign * np.logspace(-6, np.log10(88), 600) for sign in (-1, 1))])).astype(np.float32)
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
    return error / (np.maximum(np.maximum(np.abs(expected), size), np.where(np.abs(X) > 80, 2.0**-100, 0)) * 2.0**-23)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_slopes_keep_their_digits(name, be):
    function, exact = FUNCTIONS[name]
    value, slope, size = exact(X.astype(np.float64))
    x = duoln.tensor(X, be)
    with np.errstate(over="ignore"):  # in the sum, which nobody reads
        y, dx = function(x).numpy(), duoln.value_and_grad(lambda x: ops.sum(function(x)))(x)[1].numpy()
    allowed = np.full(X.shape, 5.0 if name == "gelu" else 4.0)
    if name == "gelu, tanh":  # its docstring: the rounding of the cube grows with it
        allowed += 2 * np.minimum(np.abs(math.sqrt(8 / math.pi) * (X + 0.044715 * X**3)), 88)
    if be.name == "mlx":  # on a CPU the error of its exponential grows with the size of the exponent
        allowed += 60
    for result, expected in ((y, value), (dx, slope)):
        with np.errstate(all="ignore"):
            away = units_away(result, expected, size if expected is slope else 0) / allowed
        worst = np.nanargmax(away)
        assert away[worst] <= 1, (X[worst], result[worst], expected[worst])
