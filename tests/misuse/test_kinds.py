"""Operators x kinds of both arguments, and reductions x dtypes: one result or error, the same on every backend."""

import numpy as np
import pytest

from duoln import ops
from duoln.core import Tensor
from duoln.errors import DtypeError

DTYPES = ("float32", "float64", "int32", "bool")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "floor_divide", "remainder", "hypot", "logaddexp")
FLOATS = ("divide", "hypot", "logaddexp")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
NUMPY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
         "minimum": np.minimum, "floor_divide": lambda x, y: np.floor(x / y), "remainder": np.remainder, "hypot": np.hypot,
         "logaddexp": np.logaddexp, "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
         "greater": np.greater, "greater_equal": np.greater_equal}
SHAPES = {"": (2, 3), " of no dimensions": ()}
NUMBERS = {  # what stands beside a tensor: the value, and its kind; arrays are none
    "True": (True, "bool"), "2": (2, "int"), "0.5": (0.5, "float"), "inf": (float("inf"), "float"), "np.bool_": (np.bool_(True), "bool"),
    "np.int32": (np.int32(2), "int"), "np.int64": (np.int64(2), "int"), "np.uint8": (np.uint8(2), "int"),
    "np.float32": (np.float32(0.5), "float"), "np.float64": (np.float64(0.5), "float"), "2**40": (2 ** 40, "large"),
    "np.int64 2**40": (np.int64(2 ** 40), "large"), "10**400": (10 ** 400, "none"), "1e300": (1e300, "huge"), "complex": (1j, "none"),
    "text": ("1", "none"), "None": (None, "none"), "list": ([1.0], "none"), "array": (np.ones((2, 3), np.float32), "none"),
    "array of no dimensions": (np.array(1.0, np.float32), "none"), "np.complex64": (np.complex64(1), "none"),
}
BESIDE = {"float32": ("int", "float", "large"), "float64": ("int", "float", "large", "huge"), "int32": ("int",), "bool": ("bool",)}


def taken(name, dtype):
    """The table of `duoln.ops.operands`, written a second time."""
    if name in ARITHMETIC:
        return dtype in ("float32", "float64") or (dtype == "int32" and name not in FLOATS)
    return True


def tensor(be, dtype, shape=(2, 3)):
    return Tensor(be.asarray((np.arange(np.prod(shape, dtype=int)) % 2 + 1).reshape(shape).astype(dtype)), be)


def check(call, name, expected, values=None):
    """The dtype of the result, and its values; or an error where None is expected."""
    if expected is None:
        with pytest.raises(DtypeError, match=rf"^\[{name}\] (x: )?expected .*, found ") as caught:
            call()
        return str(caught.value)
    result = call()
    assert result.dtype == expected
    if values is not None:
        np.testing.assert_allclose(result.numpy(), values, rtol=1e-6)
    return ""


def function(name, be):
    if name == "where":
        return lambda x, y: ops.where(Tensor(be.asarray(np.array([True, False, True])), be), x, y)
    return getattr(ops, name)


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS, "where"])
def test_two_tensors(name, be):
    call = function(name, be)
    for x_dtype in DTYPES:
        for y_dtype in DTYPES:
            for x_shape in SHAPES.values():
                for y_shape in SHAPES.values():
                    x, y = tensor(be, x_dtype, x_shape), tensor(be, y_dtype, y_shape)
                    fits = x_dtype == y_dtype and taken(name, x_dtype)
                    expected = ("bool" if name in COMPARISONS else x_dtype) if fits else None
                    values = NUMPY[name](x.numpy(), y.numpy()) if fits and name in NUMPY else None
                    text = check(lambda x=x, y=y: call(x, y), name, expected, values)
                    assert fits or "astype" in text


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS, "where"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=str)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_tensor_and_a_number_on_either_side(name, shape, be):
    call = function(name, be)
    for dtype in DTYPES:
        x = tensor(be, dtype, shape)
        for value, kind in NUMBERS.values():
            fits = taken(name, dtype) and kind in BESIDE[dtype]
            expected = ("bool" if name in COMPARISONS else dtype) if fits else None
            plain = np.dtype(dtype).type(value) if fits else None
            for left in (False, True):
                values = None
                if fits and name in NUMPY:
                    values = NUMPY[name](plain, x.numpy()) if left else NUMPY[name](x.numpy(), plain)
                check(lambda x=x, v=value, left=left: call(v, x) if left else call(x, v), name, expected, values)


REDUCTIONS = {
    "sum": {"float32": "float32", "float64": "float64", "int32": "int32", "bool": "int32"},
    **{name: {"float32": "float32", "float64": "float64"} for name in ("mean", "max", "min", "logsumexp", "cumulative_sum", "var", "std", "vector_norm")},
    "prod": {"float32": "float32", "float64": "float64", "int32": "int32"},
    **{name: {"bool": "bool"} for name in ("all", "any")},
    **{name: {"float32": "int32", "float64": "int32"} for name in ("argmax", "argmin")},
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, be):
    for dtype in DTYPES:
        x = tensor(be, dtype)
        expected = REDUCTIONS[name].get(dtype)
        plain = np.linalg.norm if name == "vector_norm" else getattr(np, name, None)
        values = None if expected is None or plain is None else plain(x.numpy(), axis=1).astype(expected)
        check(lambda x=x: getattr(ops, name)(x, axis=1), name, expected, values)
