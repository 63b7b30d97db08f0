"""Calls of compiled kernels: their arguments are checked, and their bits do not depend on the threads."""

import numpy as np
import pytest

from duoln import ops
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import native
from duoln.kernels.native.entries import Entries
from duoln.kernels.product.multiply import through_activation
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


def _of_rule(op, arrays, be, gout):
    """The results of the compiled rule, and its gradients for `gout` at each."""
    rule = op.rules("numpy")[0]
    assert rule.name == "compiled"
    out, saved = rule.forward(be, *arrays, eps=1e-5)
    outs = out if isinstance(out, tuple) else (out,)
    return (*outs, *rule.vjp(be, saved, (gout,) * len(outs) if isinstance(out, tuple) else gout, (True,) * len(arrays)))


def test_the_same_bits_for_any_number_of_threads(numpy_backend, same_bits, rng):
    x, gout = (rng.standard_normal((1000, 300)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 300, 1000).astype(np.int32)
    d_loss = rng.standard_normal(1000).astype(np.float32)
    gain, bias = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
    beside = [(ops.rms_norm, (x, gain)), (ops.add_layer_norm, (x, gout, gain, bias)), (ops.add_rms_norm, (x, gout, gain))]

    def run():
        norm, loss = (op.rules("numpy")[0] for op in (ops.layer_norm, ops.softmax_cross_entropy))
        assert norm.name == loss.name == "compiled"
        y, saved = norm.forward(numpy_backend, x, gain, bias, eps=1e-5, activation="tanh")
        each, kept = loss.forward(numpy_backend, x, labels)
        return (y, each, *norm.vjp(numpy_backend, saved, gout, (True,) * 3), loss.vjp(numpy_backend, kept, d_loss, (True, False))[0],
                *(a for op, given in beside for a in _of_rule(op, given, numpy_backend, gout)))

    same_bits(run)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out(value, numpy_backend):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    x[1, 2] = value
    y = ops.layer_norm.rules("numpy")[0].forward(numpy_backend, x, None, None, eps=1e-5, activation="relu")[0]
    loss = ops.softmax_cross_entropy.rules("numpy")[0].forward(numpy_backend, x, np.zeros(4, np.int32))[0]
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2, 3]]).all()
    assert (np.isfinite(loss[[0, 2, 3]]).all() and not np.isfinite(loss[1])) or value == -np.inf


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out_of_the_norms_beside_too(value, numpy_backend, rng):
    """As out of the composed rule, and out of no row but its own; a gradient of such a row is NaN."""
    be = numpy_backend
    x, zeros, gout = rng.standard_normal((4, 37)).astype(np.float32), np.zeros((4, 37), np.float32), np.ones((4, 37), np.float32)
    x[1, 36] = value
    for op, arrays in ((ops.rms_norm, (x, None)), (ops.add_layer_norm, (x, zeros, None, None)), (ops.add_layer_norm, (zeros, x, None, None)),
                       (ops.add_rms_norm, (x, zeros, None)), (ops.add_rms_norm, (zeros, x, None))):
        rule, composed = op.rules("numpy")[0], op.rules("numpy")[-1]
        out, saved = rule.forward(be, *arrays, eps=1e-5)
        with np.errstate(all="ignore"):
            expected = composed.forward(be, *arrays, eps=1e-5)[0]
        outs, wanted = (o if isinstance(o, tuple) else (o,) for o in (out, expected))
        for mine, theirs in zip(outs, wanted, strict=True):
            np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
            assert np.isfinite(mine[[0, 2, 3]]).all()
        dx = rule.vjp(be, saved, (gout, None) if isinstance(out, tuple) else gout, (True,) + (False,) * (len(arrays) - 1))[0]
        assert np.isnan(dx[1]).all() and np.isfinite(dx[[0, 2, 3]]).all()


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
