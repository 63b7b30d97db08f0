"""The compiled `where`: NumPy's bits for arrays and numbers, in every layout and at every size."""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="nothing is compiled here")


@pytest.fixture
def rule(numpy_backend):
    return runtime.backend("numpy") and ops.where.rules("numpy")[0]


def _arrays(rng, shape, dtype):
    x, y = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    x.flat[::7], y.flat[::5], x.flat[3] = np.nan, np.inf, -0.0
    return rng.random(shape) < 0.6, x, y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4096,), (4097,), (3, 5, 1001), (67, 1023), (2049, 1025)], ids=str)  # the last one goes past the caches
def test_value_and_gradients_are_those_of_numpy(shape, dtype, rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, shape, dtype)
    gout = rng.standard_normal(shape).astype(dtype)
    for a, b in ((x, y), (x, 2.5), (-np.inf, y), (x, 0.0)):
        assert rule.supports(numpy_backend, condition, a, b) is None
        out, saved = rule.forward(numpy_backend, condition, a, b)
        expected = np.where(condition, a, b)
        assert out.dtype == expected.dtype and out.shape == shape and out.tobytes() == expected.tobytes()
        none, d_x, d_y = rule.vjp(numpy_backend, saved, gout, (False, True, True))
        assert none is None
        np.testing.assert_array_equal(d_x, np.where(condition, gout, 0))
        np.testing.assert_array_equal(d_y, np.where(condition, 0, gout))
    assert rule.vjp(numpy_backend, saved, gout, (False, False, False)) == (None, None, None)


def test_layouts(rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, (70, 90), "float32")
    wide = rng.standard_normal((70, 180)).astype(np.float32)
    for a, b, c in ((condition, x, wide[:, ::2]), (condition.T, x.T, y.T), (condition[::-1], x, y[:, ::-1])):
        np.testing.assert_array_equal(rule.forward(numpy_backend, a, b, c)[0], np.where(a, b, c))


def test_what_it_leaves_to_the_composed_rule(rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, (64, 64), "float32")
    assert "the shape (64, 64)" in rule.supports(numpy_backend, condition, x, y[:1])
    assert "the shape (64, 1)" in rule.supports(numpy_backend, condition[:, :1], x, y)
    assert "floats" in rule.supports(numpy_backend, condition, np.ones((64, 64), np.int32), 1)
    assert "at least" in rule.supports(numpy_backend, condition[:60], x[:60], 0.0)
