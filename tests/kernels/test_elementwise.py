"""The compiled sum and product of two arrays, and `where`: NumPy's bits in every layout, and what is left to NumPy. And the
sum of all values of an array.
"""

import math

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")
OPERATORS = {"add": np.add, "multiply": np.multiply}


def _rule(name):
    return runtime.backend("numpy") and getattr(ops, name).rules("numpy")[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(65536,), (65537,), (3, 5, 9001), (2049, 1025)], ids=str)  # the last one has streaming stores
@pytest.mark.parametrize("name", OPERATORS)
def test_value_and_gradients_are_those_of_numpy(name, shape, dtype, rng, numpy_backend):
    x, y, gout = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    x.flat[::7], y.flat[::5], x.flat[3] = np.nan, np.inf, -0.0
    rule, of_numpy = _rule(name), OPERATORS[name]
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
        np.testing.assert_array_equal(_rule(name).forward(numpy_backend, a, b)[0], OPERATORS[name](a, b))


@pytest.mark.parametrize("value", [2.5, 0.0, -0.0, np.nan, np.inf], ids=str)
def test_the_gradient_of_a_sum_is_one_number(value, rng, numpy_backend):
    x, y = (rng.standard_normal((300, 900)).astype(np.float32) for _ in range(2))
    x[0, :7], y[0, 3] = [0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e38], np.inf
    gout = np.broadcast_to(np.float32(value), x.shape)
    rule = _rule("multiply")
    d_x, d_y = rule.vjp(numpy_backend, rule.forward(numpy_backend, x, y)[1], gout, (True, True))
    for gradient, second in ((d_x, y), (d_y, x)):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = second * gout
        np.testing.assert_array_equal(gradient, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(gradient[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_left_to_numpy(name, rng, numpy_backend):
    x, supports = rng.standard_normal((512, 512)).astype(np.float32), _rule(name).supports
    integers = np.ones((512, 512), np.int32)
    for y in (x[:1], 2.0, x.astype(np.float64), integers):
        assert "no arrays of one shape and dtype" in supports(numpy_backend, x, y)
    assert supports(numpy_backend, integers, integers) == "it is for float32 and float64"
    assert "at least" in supports(numpy_backend, x[:9], x[:9])


@pytest.fixture
def rule(numpy_backend):
    return _rule("where")


def _arrays(rng, shape, dtype):
    x, y = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    x.flat[::7], y.flat[::5], x.flat[3] = np.nan, np.inf, -0.0
    return rng.random(shape) < 0.6, x, y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4096,), (4097,), (3, 5, 1001), (67, 1023), (2049, 1025)], ids=str)  # the last one has streaming stores
def test_where_is_that_of_numpy(shape, dtype, rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, shape, dtype)
    gout = rng.standard_normal(shape).astype(dtype)
    for a, b in ((x, y), (x, 2.5), (-np.inf, y), (x, 0.0), (-0.0, y)):
        assert rule.supports(numpy_backend, condition, a, b) is None
        out, saved = rule.forward(numpy_backend, condition, a, b)
        expected = np.where(condition, a, b)
        assert out.dtype == expected.dtype and out.shape == shape and out.tobytes() == expected.tobytes()
        none, d_x, d_y = rule.vjp(numpy_backend, saved, gout, (False, True, True))
        assert none is None
        np.testing.assert_array_equal(d_x, np.where(condition, gout, 0))
        np.testing.assert_array_equal(d_y, np.where(condition, 0, gout))
    assert rule.vjp(numpy_backend, saved, gout, (False, False, False)) == (None, None, None)


def test_layouts_of_where(rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, (70, 90), "float32")
    wide = rng.standard_normal((70, 180)).astype(np.float32)
    for a, b, c in ((condition, x, wide[:, ::2]), (condition.T, x.T, y.T), (condition[::-1], x, y[:, ::-1])):
        np.testing.assert_array_equal(rule.forward(numpy_backend, a, b, c)[0], np.where(a, b, c))


def test_what_where_leaves_to_the_composed_rule(rule, rng, numpy_backend):
    condition, x, y = _arrays(rng, (64, 64), "float32")
    assert "the shape (64, 64)" in rule.supports(numpy_backend, condition, x, y[:1])
    assert "the shape (64, 1)" in rule.supports(numpy_backend, condition[:, :1], x, y)
    assert "float32 and float64" in rule.supports(numpy_backend, condition, np.ones((64, 64), np.int32), 1)
    assert "at least" in rule.supports(numpy_backend, condition[:60], x[:60], 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(65536,), (65537,), (3, 5, 9001), (2049, 1025)], ids=str)
def test_the_sum_of_all_values(shape, dtype, rng, numpy_backend):
    x, rule, axes = rng.standard_normal(shape).astype(dtype), _rule("sum"), tuple(range(len(shape)))
    exact, error = math.fsum(x.ravel().tolist()), 4 * np.finfo(dtype).eps * np.abs(x).max() * 1024
    for keepdims in (False, True):
        assert rule.supports(numpy_backend, x, axes, keepdims) is None
        out, saved = rule.forward(numpy_backend, x, axes, keepdims)
        assert out.dtype == x.dtype and out.shape == ((1,) * len(shape) if keepdims else ())
        assert abs(float(out.item()) - exact) < error
        (d_x,) = rule.vjp(numpy_backend, saved, np.full(out.shape, 2.5, dtype), (True,))
        assert d_x.shape == shape and d_x.dtype == x.dtype and (d_x == 2.5).all()


def test_a_sum_has_the_same_bits_for_any_number_of_threads(rng, numpy_backend, monkeypatch):
    x, bits = rng.standard_normal((70, 1025)).astype(np.float32), set()
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(native, "threads_for", lambda count, threads=threads: threads)
        bits.add(_rule("sum").forward(numpy_backend, x, (0, 1), False)[0].tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(("values", "expected"), [([np.nan], np.nan), ([np.inf], np.inf), ([-np.inf], -np.inf),
                                                  ([np.inf, -np.inf], np.nan), ([3e38, 3e38], np.inf)], ids=str)
@pytest.mark.parametrize("place", [0, 70000])
def test_a_sum_of_what_is_no_finite_number(values, expected, place, numpy_backend):
    x = np.zeros(70002, np.float32)
    x[place:place + len(values)] = values
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(_rule("sum").forward(numpy_backend, x, (0,), False)[0], np.float32(expected))


def test_what_a_sum_leaves_to_numpy(rng, numpy_backend):
    x, supports = rng.standard_normal((512, 512)).astype(np.float32), _rule("sum").supports
    for given, axis in ((x, (0,)), (x, (1,)), (x, ()), (x.T, (0, 1)), (x[:, ::2], (0, 1)), (x[::-1], (0, 1))):
        assert "all values" in supports(numpy_backend, given, axis, False)
    assert "at least" in supports(numpy_backend, x[:9], (0, 1), False)
    for dtype in (np.int32, bool):
        assert supports(numpy_backend, np.ones((512, 2048), dtype), (0, 1), False) == "it is for float32 and float64"
