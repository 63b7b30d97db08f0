"""The compiled sum and product of two arrays: NumPy's bits, and what is left to NumPy."""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="nothing is compiled here")
OPERATORS = {"add": (np.add, 1), "multiply": (np.multiply, 0)}
"""NumPy's function, and the place of the rule among the operator's."""


def _rule(name):
    return runtime.backend("numpy") and getattr(ops, name).rules("numpy")[OPERATORS[name][1]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(65536,), (65537,), (3, 5, 9001), (2049, 1025)], ids=str)  # the last one goes past the caches
@pytest.mark.parametrize("name", OPERATORS)
def test_value_and_gradients_are_those_of_numpy(name, shape, dtype, rng, numpy_backend):
    x, y, gout = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    x.flat[::7], y.flat[::5], x.flat[3] = np.nan, np.inf, -0.0
    rule, of_numpy = _rule(name), OPERATORS[name][0]
    assert rule.supports(numpy_backend, x, y) is None
    out, saved = rule.forward(numpy_backend, x, y)
    assert out.dtype == x.dtype and out.tobytes() == of_numpy(x, y).tobytes()
    d_x, d_y = rule.vjp(numpy_backend, saved, gout, (True, True))
    for gradient, second in ((d_x, y), (d_y, x)):
        np.testing.assert_array_equal(gradient, gout * second if name == "multiply" else gout)
    assert rule.vjp(numpy_backend, saved, gout, (False, False)) == (None, None)


@pytest.mark.parametrize("name", OPERATORS)
def test_layouts(name, rng, numpy_backend):
    x, y = (rng.standard_normal((300, 900)).astype(np.float32) for _ in range(2))
    wide = rng.standard_normal((300, 1800)).astype(np.float32)
    for a, b in ((x, wide[:, ::2]), (x.T, y.T), (x[::-1], y[:, ::-1]), (x, np.broadcast_to(y[:1], x.shape))):
        np.testing.assert_array_equal(_rule(name).forward(numpy_backend, a, b)[0], OPERATORS[name][0](a, b))


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_left_to_numpy(name, rng, numpy_backend):
    x, supports = rng.standard_normal((512, 512)).astype(np.float32), _rule(name).supports
    for y in (x[:1], 2.0, x.astype(np.float64), np.ones((512, 512), np.int32)):
        assert "no floats of one shape" in supports(numpy_backend, x, y)
    assert "at least" in supports(numpy_backend, x[:9], x[:9])
