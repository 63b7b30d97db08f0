"""Gradients that are clipped on their way back, the limits that are refused, and what does not pass a closed relu."""

import numpy as np
import pytest

from duoln import ops, tensor, value_and_grad
from duoln.errors import DtypeError, UsageError
from duoln.testing import check_error


def test_gradients_are_clipped_entry_by_entry(be):
    x = tensor(np.array([1.0, -2.0, 3.0], np.float32), be)
    weights = tensor(np.array([0.5, -30.0, 30.0], np.float32), be)
    value, gradient = value_and_grad(lambda x: ops.sum(ops.clip_gradient(x, limit=10.0) * weights))(x)
    assert float(value) == 0.5 + 60 + 90
    assert gradient.numpy().tolist() == [0.5, -10.0, 10.0]


def test_limits_and_dtypes_that_are_refused(numpy_backend):
    x = tensor(np.ones(3, np.float32), numpy_backend)
    check_error(UsageError, lambda: ops.clip_gradient(x, limit=0.0), "[clip_gradient]", "0.0")
    check_error(UsageError, lambda: ops.clip_gradient(x, limit=float("inf")), "[clip_gradient]", "inf")
    integers = tensor(np.ones(3, np.int32), numpy_backend)
    check_error(DtypeError, lambda: ops.clip_gradient(integers, limit=1.0), "[clip_gradient] expected a float dtype, found int32")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("operator", ["layer_norm", "activated_linear", "relu"])
def test_a_gradient_that_is_not_finite_ends_where_relu_is_zero(operator, value, be, rng):
    x = tensor(rng.standard_normal((4, 67)).astype(np.float32), be)
    gain = tensor(np.ones(67, np.float32), be)
    run = {"layer_norm": lambda x: ops.layer_norm(x, gain, gain * 0, activation="relu"), "relu": ops.relu,
           "activated_linear": lambda x: ops.activated_linear(x, tensor(np.eye(67, dtype=np.float32), be), gain * 0, activation="relu")}
    y = run[operator](x)
    weights = np.ones((4, 67), np.float32)
    weights[y.numpy() == 0] = value
    with np.errstate(invalid="ignore"):  # of the loss itself, where 0 is multiplied
        gradient = value_and_grad(lambda x: ops.sum(run[operator](x) * tensor(weights, be)))(x)[1].numpy()
    expected = value_and_grad(lambda x: ops.sum(run[operator](x)))(x)[1].numpy()
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
