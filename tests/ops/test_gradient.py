"""Gradients that are clipped on their way back, and the limits that are refused."""

import numpy as np

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
