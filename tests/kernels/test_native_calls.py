"""Calls of compiled kernels: arguments are checked, a norm of a sum has the bits of both, many values have the bits of few."""

import numpy as np
import pytest

from duoln import ops
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import native
from duoln.kernels.linear.multiply import multiply, through_activation
from duoln.kernels.native.entries import Entries
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


def _rule(op):
    [rule] = [rule for rule in op.rules("numpy") if rule.name == "compiled"]
    return rule


@pytest.mark.parametrize(("place", "value", "kind", "words"), [
    (0, np.ones((2, 3)), DtypeError, "dy: expected float64, found float32"),
    (1, np.ones((2, 3), np.int32), DtypeError, "dy: expected float32, found int32"),
    (1, np.ones((3, 2), np.float32), ShapeError, "dy: expected shape (2, 3), found (3, 2)"),
    (2, "a", DtypeError, "activation: expected int32, found str 'a'")])
def test_arguments_are_checked(place, value, kind, words):
    arguments = [np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), 1]
    through_activation(*arguments)
    arguments[place] = value
    check_error(kind, lambda: through_activation(*arguments), "[activation_backward]", words)


def test_an_entry_that_is_not_in_the_file():
    wrong = Entries("norm/norm.cpp", "no_such_entry", [("x", "")])
    check_error(KernelError, lambda: wrong.find(np.dtype(np.float32)), "expected the entry no_such_entry_float32 in norm/norm.cpp")


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 31, 63, 64, 65, 67, 130, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_norm_of_a_sum_has_the_bits_of_a_sum_and_a_norm(dtype, width, numpy_backend, rng):
    """Forward and backward: the rows that the first walk has written are those that an addition gives."""
    be = numpy_backend
    x, residual, dy, d_total = (rng.standard_normal((67, width)).astype(dtype) for _ in range(4))
    gain, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    for op, plain, params in ((ops.add_layer_norm, ops.layer_norm, (gain, bias)), (ops.add_rms_norm, ops.rms_norm, (gain,))):
        fused, norm = op.rules("numpy")[0], plain.rules("numpy")[0]
        (y, total), saved = fused.forward(be, x, residual, *params, eps=1e-5)
        expected, kept = norm.forward(be, x + residual, *params, eps=1e-5)
        np.testing.assert_array_equal(total, x + residual)
        np.testing.assert_array_equal(y, expected)
        needs = (True,) * len(params)
        dx, d_residual, *d_params = fused.vjp(be, saved, (dy, d_total), (True, True, *needs))
        through, *expected_params = norm.vjp(be, kept, dy, (True, *needs))
        np.testing.assert_array_equal(d_residual, dx)
        np.testing.assert_allclose(dx, through + d_total, rtol=1e-6 if dtype == "float32" else 1e-15,
                                   atol=1e-6 if dtype == "float32" else 1e-15)
        for mine, theirs in zip(d_params, expected_params, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_rms_norm_overflows_where_the_composed_rule_does_and_not_before(numpy_backend):
    """The sum of squares overflows in float32 above 3.4e38; 1e19 over 3 values is below it, over 4 it is above."""
    rule, composed = (ops.rms_norm.rules("numpy")[k] for k in (0, -1))
    for width, scale in ((3, 1e19), (4, 1e19), (1000, 1e17), (1000, 5e17), (1000, 7e17), (3, 1e-25)):
        x = np.full((2, width), scale, np.float32)
        with np.errstate(all="ignore"):
            expected = composed.forward(numpy_backend, x, None, eps=1e-5)[0]
        y = rule.forward(numpy_backend, x, None, eps=1e-5)[0]
        np.testing.assert_allclose(y, expected, rtol=1e-5, err_msg=f"{width} values of {scale}")


@pytest.mark.parametrize("op", [ops.relu, ops.leaky_relu])
def test_a_gradient_without_axes_may_be_a_scalar_of_numpy(op, numpy_backend):
    """NumPy's arithmetic on arrays without axes gives scalars."""
    rule = _rule(op)
    attrs = {"slope": 0.5} if op is ops.leaky_relu else {}
    y, saved = rule.forward(numpy_backend, np.array(3, np.float32), **attrs)
    [dx] = rule.vjp(numpy_backend, saved, np.float32(2), (True,))
    assert y.shape == dx.shape == () and (y, dx) == (3, 2)


# More values than the caches hold, whose results are written past them: the same bits as those of few values

WIDTH = 1001  # so that rows begin anywhere in a vector
ROWS = 2 * (8 << 20) // (4 * WIDTH)
"""As many as take sixteen MiB in float32."""
FEW = 64
"""Rows whose shares of a parameter's gradient are added up together."""


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("offset", [0, 3], ids=["rows of an array", "rows that begin anywhere"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_norm_past_the_caches(dtype, offset, threads, rng, numpy_backend):
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
def test_a_product_of_a_small_depth_past_the_caches(depth, width, dtype, threads, rng):
    a, b, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((ROWS + 3, depth), (depth, width), width))
    whole = multiply(a, b, added=bias)
    few = 2 * FEW  # enough for a compiled product
    for first in (*range(0, len(a) - few, few * 20), len(a) - few):
        assert np.array_equal(whole[first:first + few], multiply(a[first:first + few], b, added=bias))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_update_past_the_caches(dtype, threads, rng, numpy_backend):
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
