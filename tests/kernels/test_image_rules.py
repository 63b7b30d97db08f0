"""The compiled rules of a convolutional network's operators: values, ties, what is not a number, any number of threads."""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import native
from duoln.testing import check_rule

pytestmark = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")


def _rule(op):
    return (runtime.backend("numpy") and op.rules("numpy"))[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "slope"), [((1,), 0.1), ((3, 5), 1.0), ((2, 3, 1001), 1e-3), ((7, 301), 0.5), ((4, 9), 0.0),
                                              ((3, 7), 1.5)], ids=str)
def test_leaky_relu(shape, slope, dtype, rng, numpy_backend):
    x = rng.standard_normal(shape).astype(dtype)
    x.flat[0] = 0.0
    check_rule(ops.leaky_relu, _rule(ops.leaky_relu), [x], numpy_backend, {"slope": slope})


def test_leaky_relu_is_to_the_bit_what_where_gives(numpy_backend):
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 3.0, -3.0], np.float32)
    rule, composed = _rule(ops.leaky_relu), ops.leaky_relu.rules("numpy")[-1]
    assert "at least 0" in rule.supports(numpy_backend, x, slope=-0.5)
    for slope in (0.1, 0.5, 1.5):
        (mine, saved), (theirs, kept) = (r.forward(numpy_backend, x, slope=slope) for r in (rule, composed))
        np.testing.assert_array_equal(mine, theirs)
        gout = np.arange(1, 10, dtype=np.float32)
        np.testing.assert_array_equal(rule.vjp(numpy_backend, saved, gout, (True,))[0],
                                      composed.vjp(numpy_backend, kept, gout, (True,))[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 1001), (67,), (300, 1001)], ids=str)
def test_relu(shape, dtype, rng, numpy_backend):
    x = rng.standard_normal(shape).astype(dtype)
    x.flat[0] = 0.0
    check_rule(ops.relu, _rule(ops.relu), [x], numpy_backend)
    check_rule(ops.relu, _rule(ops.relu), [x.T], numpy_backend)


def test_relu_is_the_larger_of_x_and_0_and_its_gradient_is_chosen(numpy_backend):
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 3.0, -3.0], np.float32)
    y, saved = _rule(ops.relu).forward(numpy_backend, x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert not np.signbit(y[[0, 3, 5, 8]]).any()
    gout = np.array([1, 2, 3, np.inf, 5, np.nan, 7, 8, np.inf], np.float32)
    np.testing.assert_array_equal(_rule(ops.relu).vjp(numpy_backend, saved, gout, (True,))[0],
                                  np.where(x > 0, gout, np.float32(0)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "size", "stride"), [
    ((1, 1, 1, 1), 1, 1), ((2, 6, 6, 3), 2, 2), ((5, 7, 5, 2), 2, 2), ((2, 8, 9, 4), 3, 3), ((3, 4, 4, 1), 4, 4),
    ((2, 9, 8, 17), 3, 2), ((2, 7, 8, 5), 2, 3), ((1, 6, 5, 3), 5, 1)], ids=str)
def test_max_pool2d(shape, size, stride, dtype, rng, numpy_backend):
    for x in (rng.standard_normal(shape), rng.integers(0, 2, shape), np.zeros(shape)):  # without ties, with, all
        check_rule(ops.max_pool2d, _rule(ops.max_pool2d), [x.astype(dtype)], numpy_backend, {"size": size, "stride": stride})


@pytest.mark.parametrize(("op", "attrs"), [(ops.relu, {}), (ops.leaky_relu, {"slope": 0.1}), (ops.max_pool2d, {"size": 2, "stride": 2})])
def test_no_values_are_left_to_the_composed_rule(op, attrs, numpy_backend):
    x = np.ones((2, 4, 4, 3), np.float32)
    assert _rule(op).supports(numpy_backend, x, **attrs) is None
    assert "no values" in _rule(op).supports(numpy_backend, x[:0], **attrs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out(value, rng, numpy_backend):
    """A value reaches what is computed from it and nothing else, as in the composed rule."""
    x = rng.standard_normal((3, 7, 6, 3)).astype(np.float32)
    x[1, 3, 2, 1] = value
    weight = rng.standard_normal((3, 3, 3, 20)).astype(np.float32)
    for op, arrays, attrs in ((ops.conv2d, (x, weight), {"stride": 1, "padding": 1}), (ops.max_pool2d, (x,), {"size": 2, "stride": 2}),
                              (ops.leaky_relu, (x,), {"slope": 0.1}), (ops.relu, (x,), {}), (ops.add, (x, weight[0, 0, :, 0]), {})):
        with np.errstate(invalid="ignore"):  # some CPUs' BLAS multiplies infinity by 0 in lanes that it then drops
            mine, expected = (rule.forward(numpy_backend, *arrays, **attrs)[0] for rule in (_rule(op), op.rules("numpy")[-1]))
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(expected))
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
    with np.errstate(invalid="ignore"):
        y, mean, variance = _rule(ops.batch_norm).forward(numpy_backend, x, None, None, 1e-5, False)[0]
    assert np.isnan(y[..., 1]).all() and np.isfinite(y[..., [0, 2]]).all() and np.isfinite(mean[[0, 2]]).all()
    assert not np.isfinite(mean[1]) and np.isnan(variance[1])


def test_the_same_bits_for_any_number_of_threads(rng, numpy_backend, same_bits):
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((5, 19, 17, 21), (3, 3, 21, 35)))
    gain, bias = (rng.standard_normal(21).astype(np.float32) for _ in range(2))
    many = rng.standard_normal((37, 6, 5, 21)).astype(np.float32)  # of so many the gradient is added up in groups
    calls = [(ops.conv2d, (many, weight), {"stride": 1, "padding": 1}),
             (ops.conv2d, (many, weight[:, :, :1, :21]), {"stride": 1, "padding": 1, "groups": 21}),
             (ops.conv2d, (x, weight), {"stride": 1, "padding": 2, "dilation": 2}),
             (ops.conv2d, (x, weight), {"stride": 1, "padding": 1}), (ops.conv2d, (x, weight), {"stride": 2, "padding": 0}),
             (ops.max_pool2d, (x,), {"size": 2, "stride": 2}), (ops.max_pool2d, (x,), {"size": 3, "stride": 2}),
             (ops.leaky_relu, (x,), {"slope": 0.1}), (ops.batch_norm, (x, gain, bias), {"eps": 1e-5, "unbiased": True}),
             (ops.relu, (many,), {}), (ops.add, (x, bias), {})]
    gouts = []
    for op, arrays, attrs in calls:
        out = _rule(op).forward(numpy_backend, *arrays, **attrs)[0]
        gouts.append(tuple(rng.standard_normal(o.shape).astype(np.float32) for o in out) if isinstance(out, tuple) else
                     rng.standard_normal(out.shape).astype(np.float32))

    def run():
        for (op, arrays, attrs), gout in zip(calls, gouts, strict=True):
            out, saved = _rule(op).forward(numpy_backend, *arrays, **attrs)
            yield from (*(out if isinstance(out, tuple) else (out,)), *_rule(op).vjp(numpy_backend, saved, gout, (True,) * len(arrays)))

    same_bits(run)
