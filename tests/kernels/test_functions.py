"""The elementary functions of the compiled kernels: how far from the exact values, and the same bits for one value and for a vector."""

import numpy as np
import pytest
from accuracy import Claim, compiled, samples

from duoln.kernels import native
from duoln.kernels.native import processor, toolchain

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

PHI, DENSITY = "erfc(-x / sqrt(W(2))) / 2", "exp(-x * x / 2) / sqrt(2 * acos(W(-1)))"
CLAIMS = {
    "exponential": Claim("exponential(x)", "exp(x)", 2),
    "hyperbolic_tangent": Claim("hyperbolic_tangent(x)", "tanh(x)", 3),
    "sigmoid": Claim("sigmoid(x)", "1 / (1 + exp(-x))", 3),
    "sigmoid_slope": Claim("sigmoid_slope(x)", "1 / (2 + exp(x) + exp(-x))"),
    "hyperbolic_tangent_slope": Claim("hyperbolic_tangent_slope(x)", "1 / pow(cosh(x), 2)"),
    "silu": Claim("silu(x)", "(x < -1000 ? W(0) : x / (1 + exp(-x)))"),
    "silu_slope": Claim("silu_slope(x)", "(x < -1000 ? W(0) : (1 + (isinf(x) ? W(0) : x / (1 + exp(x)))) / (1 + exp(-x)))",
                        scale="fmax(1, fabs(x) / (1 + exp(x))) / (1 + exp(-x))"),
    "square_root": Claim("square_root(x)", "sqrt(x)", 0.5),
    "absolute": Claim("absolute(x)", "fabs(x)", 0),
    "exponential_less_one": Claim("exponential_less_one(x)", "expm1(x)"),
    "logarithm": Claim("logarithm(x)", "log(x)"),
    "logarithm_of_one_plus": Claim("logarithm_of_one_plus(x)", "log1p(x)"),
    "softplus": Claim("softplus(x)", "fmax(x, W(0)) + log1p(exp(-fabs(x)))"),
    "error_function": Claim("error_function(x)", "erf(x)"),
    "error_function_slope": Claim("error_function_slope(x)", "2 * exp(-x * x) / sqrt(acos(W(-1)))"),
    "gelu": Claim("gelu(x)", f"(x < -100 ? W(0) : x * {PHI})"),
    "gelu_slope": Claim("gelu_slope(x)", f"{PHI} + (isinf(x) ? W(0) : x * {DENSITY})", scale=f"fmax({PHI}, fabs(x) * {DENSITY})"),
}
BORDERS = (0.8, -0.8, 4, -4, 6, -6, 14.6, -14.6, 38.7, -38.7, 88.72284, 709.782712893384, -103.97, -745.13, -87.336, -708.396, 0.70710678,
           1.41421356, -0.29289322, 0.41421356, 1.17549435e-38, -1, 16777216, 20, -20, 10, -10)
"""Where a function takes another way, or its values change their kind."""


@pytest.fixture(scope="module", params=["native", "x86-64-v4", "x86-64-v3", "x86-64"])
def checks(request, tmp_path_factory):
    if request.param != "native" and processor.lacking(toolchain.target(native.compiler(), request.param).needs) != []:
        pytest.skip(f"this CPU does not run {request.param}")
    return compiled(CLAIMS, request.param, tmp_path_factory.mktemp("functions"))


def _hold(name, worst):
    assert worst.units <= CLAIMS[name].most, (worst.units, worst.x)
    assert worst.wrong == 0, worst.wrong_x
    assert worst.differing == 0, worst.differing_x


@pytest.mark.few
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name if k < 2 else pytest.param(name, marks=pytest.mark.long) for k, name in enumerate(CLAIMS)])
def test_accuracy_and_bits(name, dtype, checks):
    _hold(name, checks.check(name, samples(dtype, BORDERS)))


@pytest.mark.long
@pytest.mark.parametrize("name", CLAIMS)
def test_every_float(name, tmp_path):
    _hold(name, compiled({name: CLAIMS[name]}, "native", tmp_path).check_all(name))
