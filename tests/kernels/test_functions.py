"""The elementary functions of the compiled kernels: how far from the exact values, and the same bits for one value and for a vector."""

import numpy as np
import pytest

from duoln.kernels import native
from duoln.kernels.native import processor, toolchain
from tests.tools.accuracy import Claim, compiled, samples

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
    "gaussian_density": Claim("gaussian_density(x)", DENSITY),
    "gaussian_distribution": Claim("gaussian_distribution(x)", PHI, 4.5),
    "gelu": Claim("gelu(x)", f"(x < -100 ? W(0) : x * {PHI})", 5),
    "gelu_slope": Claim("gelu_slope(x)", f"{PHI} + (isinf(x) ? W(0) : x * {DENSITY})", 5, scale=f"fmax({PHI}, fabs(x) * {DENSITY})"),
}


@pytest.fixture(scope="module", params=["native", "x86-64-v4", "x86-64-v3", "x86-64"])
def checks(request, tmp_path_factory):
    if request.param != "native" and processor.lacking(toolchain.target(native.compiler(), request.param).needs) != []:
        pytest.skip(f"this CPU does not run {request.param}")
    return compiled(CLAIMS, request.param, tmp_path_factory.mktemp("functions"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CLAIMS)
def test_accuracy_and_bits(name, dtype, checks):
    worst = checks.check(name, samples(dtype))
    print(name, checks.march, dtype.__name__, worst.units, worst.x)
    assert worst.units <= CLAIMS[name].most, (worst.units, worst.x)
    assert worst.wrong == 0, worst.wrong_x
    assert worst.differing == 0, worst.differing_x
