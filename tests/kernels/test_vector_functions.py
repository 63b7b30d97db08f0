"""e^x, tanh and sigmoid of the compiled kernels: how far from float64's, and the same bits for one value and for a vector."""

import ctypes
import subprocess

import numpy as np
import pytest

from duoln.kernels import native
from duoln.kernels.native import processor, toolchain
from duoln.kernels.source import FOLDER

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

TEXT = """
#define CPU_KERNEL
#include "vector.h"
#define BOTH(NAME)                                                                                              \\
    extern "C" void NAME##s(const float* x, float* in_vectors, float* one_by_one, long n) {                     \\
        for (long k = 0; k < n; k += Vector<float>::lanes) store(in_vectors + k, NAME(load(x + k)));            \\
        for (long k = 0; k < n; ++k) one_by_one[k] = NAME(x[k]);                                                \\
    }
BOTH(exponential)
BOTH(hyperbolic_tangent)
BOTH(sigmoid)
"""
FUNCTIONS = {"exponential": (np.exp, 2), "hyperbolic_tangent": (np.tanh, 3),
             "sigmoid": (lambda x: np.exp(-np.logaddexp(0, -x)), 3)}
"""What each must be, and how many units in the last place it may be away."""


@pytest.fixture(scope="module", params=["native", "x86-64-v4", "x86-64-v3", "x86-64"])
def library(request, tmp_path_factory):
    compiler, folder = native.compiler(), tmp_path_factory.mktemp("vector")
    if request.param != "native" and processor.lacking(toolchain.target(compiler, request.param).needs) != []:
        pytest.skip(f"this CPU does not run {request.param}")
    (folder / "functions.cpp").write_text(TEXT)
    subprocess.run([*compiler.command, *toolchain.flags_for(compiler, request.param), f"-I{FOLDER}", "-o", folder / "functions.so",
                    folder / "functions.cpp"], check=True)
    return ctypes.CDLL(str(folder / "functions.so"))


def _all_kinds():
    """Floats of every sign and size, and those where a function takes another way, in whole vectors."""
    bits = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.72284, 88.7229, -87.4, -103.97, -104.1, 9.01, 10, 10.1])
    near = np.linspace(-12, 12, 100_001, dtype=np.float32)
    values = np.concatenate([special, near, bits])
    return np.resize(values, -(-len(values) // 64) * 64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_and_bits(name, library):
    exact_of, most = FUNCTIONS[name]
    x = _all_kinds()
    in_vectors, one_by_one = np.empty_like(x), np.empty_like(x)
    pointers = (ctypes.c_void_p(a.ctypes.data) for a in (x, in_vectors, one_by_one))
    getattr(library, f"{name}s")(*pointers, ctypes.c_long(len(x)))
    assert np.array_equal(np.isnan(in_vectors), np.isnan(x)) and np.array_equal(np.isnan(one_by_one), np.isnan(x))
    seen = ~np.isnan(x)
    assert (in_vectors.view(np.uint32) == one_by_one.view(np.uint32))[seen].all()
    with np.errstate(over="ignore", under="ignore"):
        exact = exact_of(x[seen].astype(np.float64))
        nearest = exact.astype(np.float32)
    actual = in_vectors[seen]
    assert np.array_equal(np.signbit(actual), np.signbit(nearest))
    finite = np.isfinite(nearest)
    assert np.isinf(actual[~finite]).all()
    away = np.abs(actual[finite].astype(np.float64) - exact[finite]) / np.spacing(np.abs(nearest[finite])).astype(np.float64)
    assert away.max() <= most, (away.max(), x[seen][finite][away.argmax()])
