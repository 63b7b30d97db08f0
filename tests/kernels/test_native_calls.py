"""Calls of compiled kernels: their arguments are checked, and a norm of a sum has the bits of a sum and a norm."""

import numpy as np
import pytest

from duoln import ops
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import native
from duoln.kernels.native.entries import Entries
from duoln.kernels.product.multiply import through_activation
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize(("place", "value", "kind", "words"), [
    (0, np.ones((2, 3)), DtypeError, "dy: expected float64, found float32"), (1, np.ones((2, 3), np.int32), DtypeError, "dy: expected float32, found int32"),
    (1, np.ones((3, 2), np.float32), ShapeError, "dy: expected shape (2, 3), found (3, 2)"), (2, "a", DtypeError, "activation: expected int32, found str 'a'")])
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
        np.testing.assert_allclose(dx, through + d_total, rtol=1e-6 if dtype == "float32" else 1e-15, atol=1e-6 if dtype == "float32" else 1e-15)
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
    [rule] = [rule for rule in op.rules("numpy") if rule.name == "compiled"]
    attrs = {"slope": 0.5} if op is ops.leaky_relu else {}
    y, saved = rule.forward(numpy_backend, np.array(3, np.float32), **attrs)
    [dx] = rule.vjp(numpy_backend, saved, np.float32(2), (True,))
    assert y.shape == dx.shape == () and (y, dx) == (3, 2)
