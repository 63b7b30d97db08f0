"""Norms, products of a small depth and updates of more values than the caches hold, whose results are written past them: the same bits
as those of few values.
"""

import numpy as np
import pytest

from duoln import ops
from duoln.kernels import native
from duoln.kernels.product.multiply import multiply

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

WIDTH = 1001  # so that rows begin anywhere in a vector
ROWS = 2 * (8 << 20) // (4 * WIDTH)
"""As many as take sixteen MiB in float32."""
FEW = 64
"""Rows whose shares of a parameter's gradient are added up together."""


def _rule(op):
    [rule] = [rule for rule in op.rules("numpy") if rule.name == "compiled"]
    return rule


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("offset", [0, 3], ids=["rows of an array", "rows that begin anywhere"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layer_norm(dtype, offset, threads, rng, numpy_backend):
    whole = rng.standard_normal(offset + ROWS * WIDTH).astype(dtype)
    x = whole[offset:].reshape(ROWS, WIDTH)
    gain, bias = (rng.standard_normal(WIDTH).astype(dtype) for _ in range(2))
    dy = rng.standard_normal(x.shape).astype(dtype)
    rule = _rule(ops.layer_norm)

    def results(first, last):
        y, saved = rule.forward(numpy_backend, x[first:last], gain, bias, eps=1e-5, activation="tanh")
        return y, rule.vjp(numpy_backend, saved, dy[first:last], (True, True, True))[0]

    y, dx = results(0, ROWS)
    for first in range(0, ROWS, FEW * 40):
        some_y, some_dx = results(first, min(first + FEW, ROWS))
        assert np.array_equal(y[first:first + FEW], some_y) and np.array_equal(dx[first:first + FEW], some_dx)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("depth", "width"), [(3, WIDTH), (32, 1008), (64, 1024), (33, WIDTH)], ids=str)
def test_product_of_a_small_depth(depth, width, dtype, threads, rng):
    a, b, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((ROWS + 3, depth), (depth, width), width))
    whole = multiply(a, b, added=bias)
    few = 2 * FEW  # enough for a compiled product
    for first in (*range(0, len(a) - few, few * 20), len(a) - few):
        assert np.array_equal(whole[first:first + few], multiply(a[first:first + few], b, added=bias))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adam(dtype, threads, rng, numpy_backend):
    size, few = 900_001, 5000  # three results of 3.4 MiB in float32
    arrays = [rng.standard_normal(size).astype(dtype) for _ in range(4)]
    arrays[3] = np.abs(arrays[3])
    rate, eps, scale, keep = (np.array(x, dtype) for x in (0.1, 1e-3, 0.7, 0.9))

    def updated(first, last):
        parts = [a[first:last] for a in arrays]
        return _rule(ops.adam_update).forward(numpy_backend, rate, eps, scale, keep, *parts, beta1=0.9, beta2=0.99, donate=False)[0][:3]

    whole = updated(0, size)
    for first in (*range(0, size - few, 100_000), size - few):
        for all_of, some in zip(whole, updated(first, first + few), strict=True):
            assert np.array_equal(all_of[first:first + few], some)
