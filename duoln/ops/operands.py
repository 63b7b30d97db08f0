"""The arguments that a two-argument operator accepts, and the dtype of its result.

| operators | tensors | result |
| --- | --- | --- |
| add, subtract, multiply, maximum, minimum | float32, float64, float16, bfloat16, int32 | that dtype |
| floor_divide, remainder | float32, float64, float16, bfloat16, int32 | that dtype |
| divide, pow, hypot, logaddexp | float32, float64, float16, bfloat16 | that dtype |
| equal, not_equal, less, less_equal, greater, greater_equal | any | bool |
| where | any | that dtype |
| logical_and, logical_or | bool | bool |

Two tensors must have one dtype: nothing is promoted. Only float32 may stand beside float16 or bfloat16, whose values it
holds exactly, and gives float32. A Python number takes the dtype of the tensor beside it, and a NumPy scalar counts as
a Python number. A NumPy array must be wrapped with `duoln.tensor` first:

| tensor | the number beside it |
| --- | --- |
| float32, float64 | an integer or a float that is finite in that dtype, infinity, NaN |
| float16, bfloat16 | as float32, in which the operator computes |
| int32 | an integer that int32 holds |
| bool | True or False |

Results of int32 do not wrap round. NumPy refuses one that int32 does not hold, by a DtypeError; a device, which would
have to wait, gives the nearest number that int32 holds. The same is true of `sum` and `prod`. NumPy refuses a divisor 0
of int32 in the same way, for which a device gives 0; the number 0 is refused everywhere.

All other combinations raise a DtypeError that names the remedy. Tensors without axes follow the same rules. Among the
reductions, `sum` keeps float32, float64 and int32, gives float32 for 16 bits, and counts bools in int32; `mean`, `max`,
`min`, `logsumexp` and `softmax` need floats; `all` and `any` need bools. These rules hold on every backend. The
operators read them from the two tables below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import DTYPES, REALS, STORAGE
from duoln.core import Tensor
from duoln.core.arguments import INT32, described
from duoln.core.spec import not_tensor_error
from duoln.core.storage import MIXED
from duoln.core.tensor import Operand
from duoln.errors import DtypeError, MixedBackendError
from duoln.ops.common import broadcast_shape

_ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder")
_OF_FLOATS = ("divide", "pow", "hypot", "logaddexp")
_ANY_DTYPE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where")
TENSORS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_ARITHMETIC, frozenset({*REALS, "int32"})), **dict.fromkeys(_OF_FLOATS, frozenset(REALS)),
    **dict.fromkeys(_ANY_DTYPE, frozenset(DTYPES)), **dict.fromkeys(("logical_and", "logical_or"), frozenset({"bool"})),
}
"""The dtypes of the tensors that an operator takes."""

NUMBERS: dict[str, tuple[type, ...]] = {**dict.fromkeys(REALS, (float, int)), "int32": (int,), "bool": (bool,)}
"""The Python numbers that may stand beside a tensor of a dtype."""

_LARGEST = {"float32": float(np.finfo(np.float32).max), "float64": float(np.finfo(np.float64).max)}
_LARGEST |= dict.fromkeys(STORAGE, _LARGEST["float32"])
_WORDS = {**dict.fromkeys(REALS, "a number"), "int32": "an integer", "bool": "True or False"}


def operands(name: str, x: Any, y: Any) -> tuple[Operand, Operand]:
    """Both arguments after a check that they fit together; numbers become Python numbers.

    Raises:
        DtypeError: their kinds do not fit. ShapeError: their shapes do not broadcast. MixedBackendError: two backends.
    """
    if not isinstance(x, Tensor):
        if not isinstance(y, Tensor):
            raise DtypeError(f"[{name}] expected a duoln.Tensor as one of two arguments, found {described(x)} and "
                             f"{described(y)}")
        return _number(name, y, x), y
    if not isinstance(y, Tensor):
        return x, _number(name, x, y)
    dtype = x.dtype
    if x.backend is not y.backend:
        raise MixedBackendError(f"[{name}] expected one backend, found {x.backend.name} and {y.backend.name}")
    if y.dtype != dtype and {dtype, y.dtype} not in MIXED:
        raise DtypeError(f"[{name}] expected equal dtypes, found {dtype} and {y.dtype}; convert with astype")
    if dtype not in TENSORS[name]:
        raise _unfit(name, dtype)
    if x.data.shape != y.data.shape:
        broadcast_shape(name, x.data.shape, y.data.shape)
    return x, y


def _number(name: str, tensor: Tensor, value: Any) -> float | int | bool:
    """A number beside a tensor, as a Python number that the tensor's dtype holds."""
    dtype = tensor.dtype
    if dtype not in TENSORS[name]:
        raise _unfit(name, dtype)
    if type(value) is float and dtype in REALS and -_LARGEST[dtype] <= value <= _LARGEST[dtype]:
        return value  # the usual case
    number = value.item() if isinstance(value, np.generic) else value
    kind = next((k for k in (bool, int, float) if isinstance(number, k)), None)
    if kind is None:
        raise not_tensor_error(name, value)
    if kind not in NUMBERS[dtype]:
        raise DtypeError(f"[{name}] expected {_WORDS[dtype]} beside a tensor of {dtype}, found {described(value)}; "
                         "convert the tensor with astype")
    if dtype == "int32":
        if not INT32.min <= number <= INT32.max:
            raise DtypeError(f"[{name}] expected an integer that int32 holds, {INT32.min} .. {INT32.max}, "
                             f"found {described(value)}")
        return int(number)
    if dtype in REALS:
        # NaN and infinity exist in every float dtype, and the absolute value of neither is between the two bounds.
        if _LARGEST[dtype] < (number if number >= 0 else -number) < float("inf"):
            raise DtypeError(f"[{name}] expected a number that {dtype} holds, up to {_LARGEST[dtype]:.6g}, "
                             f"found {described(value)}")
        return float(number)
    return bool(number)


def _unfit(name: str, dtype: str) -> DtypeError:
    wanted = "float32 or float64" if name in _OF_FLOATS else "float32, float64 or int32"
    remedy = "convert with astype" + (", or use logical_and, logical_or or where" if dtype == "bool" else "")
    return DtypeError(f"[{name}] expected tensors of {wanted}, found {dtype}; {remedy}")
