"""Numbers that a dtype does not hold are refused, on every backend, and the dtype is the one that was asked for."""

import array

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import DtypeError

HELD = [("int32", 7, 7), ("int32", 3.0, 3), ("int32", -2**31, -2**31), ("bool", True, True), ("bool", 0, False), ("bool", 1.0, True), ("float32", 7, 7.0),
        ("float32", 0.1, np.float32(0.1)), ("float32", np.inf, np.inf), ("float64", 0.1, 0.1), ("float16", 0.1, np.float16(0.1)),
        ("bfloat16", 1.00390625, 1.0), ("float16", 65504.0, 65504.0)]
NOT_HELD = [("int32", 1.5), ("int32", 2**40), ("int32", -2**31 - 1), ("int32", np.inf), ("bool", 0.5), ("bool", 2), ("bool", -1), ("float32", 1e300),
            ("float16", 65536.0), ("bfloat16", 3.4e38), ("float32", -(2**200))]


@pytest.mark.parametrize(("dtype", "number", "expected"), HELD)
def test_what_a_dtype_holds(dtype, number, expected, be):
    like = ops.zeros((2, 3), be, dtype)
    for x in (ops.full((2, 3), number, be, dtype), ops.full_like(like, number)):
        assert x.dtype == dtype and x.shape == (2, 3)
        np.testing.assert_array_equal(x.numpy(), np.full((2, 3), expected))
    if dtype != "bool" or type(number) is not bool:
        padded = ops.pad(like, ((0, 0), (1, 0)), number)
        assert padded.dtype == dtype
        np.testing.assert_array_equal(padded.numpy()[:, 0], np.full(2, expected))


@pytest.mark.parametrize(("dtype", "number"), NOT_HELD)
def test_what_a_dtype_does_not_hold(dtype, number, be):
    like = ops.zeros((2, 3), be, dtype)
    for name, call in (("full", lambda: ops.full((2,), number, be, dtype)), ("full_like", lambda: ops.full_like(like, number)),
                       ("pad", lambda: ops.pad(like, ((0, 0), (1, 0)), number))):
        with pytest.raises(DtypeError, match=rf"^\[{name}\] \w+: expected .*, found -?[\d.inf+e]+$"):
            call()
    if dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(DtypeError, match=r"^\[linspace\] stop: expected numbers up to .*, found"):
            ops.linspace(0.0, number, 3, backend=be, dtype=dtype)


class Wide:
    def __array__(self, dtype=None, copy=None):
        return np.array([0.1, 0.2])


def test_arrays_of_float64_of_every_library_keep_their_dtype(be):
    values = np.array([0.1, 0.2])
    for x in (values, memoryview(values), array.array("d", values), Wide()):
        y = duoln.tensor(x, be)
        assert y.dtype == "float64"
        np.testing.assert_array_equal(y.numpy(), values)
        assert duoln.tensor(x, be, dtype="float32").dtype == "float32"
    for x in ([0.1, 0.2], (0.1, [0.2][0]), 0.1, [1, 0.5], array.array("f", values), [np.float32(0.1)]):
        assert duoln.tensor(x, be).dtype == "float32"
    assert duoln.tensor(np.float64(0.1), be).dtype == "float64"
