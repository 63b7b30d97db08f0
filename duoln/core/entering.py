"""Values that enter from the host: the dtype that they get, and the values that a dtype cannot hold.

NumPy has no bfloat16: values for a tensor of that dtype stay in the dtype they have, and the backend rounds them.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from duoln.backends.protocol import STORAGE, Backend
from duoln.core.arguments import INT32, MOST_AXES, check_axes, described, did_you_mean, dtype_name, how_to_unpack
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, ShapeError

_PLAIN = list, tuple, int, float, np.ndarray
_TEXTS = {"U": "text", "S": "bytes"}
_EVERYWHERE = {np.dtype(name): name for name in ("float32", "int32", "bool")}
"""The dtypes that every backend has. `dtype.name` takes as long as the rest of what enters a step."""
_LARGEST_BFLOAT16 = 3.3895313892515355e38
"""(2 - 2^-7) 2^127."""


def backend_or_default(name: str | None) -> Backend:
    """The backend of that name, or the one that `duoln.backend()` chooses. `runtime`, above all layers, knows them."""
    backend: Backend = importlib.import_module("duoln.runtime").backend(name)
    return backend


def host_array(x: Any, backend: Backend, dtype: str | None) -> tuple[np.ndarray, str]:
    """`x` as an array, and the dtype of its tensor, which the backend has; see `duoln.tensor` for the rules.

    Raises:
        DtypeError: a value is not a number, the backend lacks the dtype, or the dtype cannot hold a value.
        ShapeError: lists have different lengths.
    """
    if dtype is None and type(x) is np.ndarray and x.dtype in _EVERYWHERE and x.ndim <= MOST_AXES:
        return x, _EVERYWHERE[x.dtype]
    dtype = dtype_name(dtype) or (x.dtype if isinstance(x, Tensor) else None)
    values = x.numpy() if isinstance(x, Tensor) else _as_array(x)
    check_axes("tensor", values.ndim)
    if dtype is not None and (not isinstance(dtype, str) or dtype not in backend.dtypes):
        raise DtypeError(f"[tensor] dtype: expected one of {', '.join(backend.dtypes)} on {backend.name}, "
                         f"found {dtype!r:.60}{did_you_mean(dtype, backend.dtypes)}")
    wanted = dtype or _inferred_dtype(x, values, backend)
    if wanted != "bfloat16" and values.dtype == wanted:
        return values, wanted
    if wanted == "int32" and values.dtype.kind in "iu" and ((whole := values.astype(np.int32)) == values).all():
        return whole, wanted
    _check_values("[tensor]", values, wanted)
    if wanted in STORAGE:
        return values if values.dtype.kind == "f" else values.astype(np.float64), wanted
    with np.errstate(all="ignore"):
        return values.astype(wanted), wanted


def _as_array(x: Any) -> np.ndarray:
    if _contains_type(x, (Tensor, np.ma.MaskedArray)):
        refuse_masked("tensor", x)
        raise DtypeError("[tensor] expected numbers on the host, found tensors in a list; put them together with "
                         "ops.stack")
    if not isinstance(x, _PLAIN) and (remedy := how_to_unpack(x)):
        raise DtypeError(f"[tensor] expected numbers in lists, or an array, found {described(x)}; {remedy}")
    try:
        values = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(x, list | tuple):
            check_axes("tensor", _depth(x))
            raise ShapeError("[tensor] expected numbers in lists of equal lengths, found different lengths") from error
        raise DtypeError(f"[tensor] expected what NumPy reads as an array, found {described(x)}: {error}") from error
    if values.dtype == object and all(isinstance(v, int) for v in values.flat):
        try:
            return values.astype(np.float64)  # integers beyond 64 bits
        except OverflowError:
            raise DtypeError("[tensor] expected numbers within float64, found an integer beyond it") from None
    return values


def _depth(x: Any) -> int:
    """The number of lists in each other, each the first entry of the one around it."""
    return 1 + _depth(x[0]) if isinstance(x, list | tuple) and x else 0


def _contains_type(x: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(x, kinds) or (isinstance(x, list | tuple) and any(_contains_type(v, kinds) for v in x))


def refuse_masked(name: str, x: Any) -> None:
    """Raises DtypeError for a masked array of NumPy, also in a list: its hidden values would count."""
    if _contains_type(x, np.ma.MaskedArray):
        raise DtypeError(f"[{name}] expected an array without a mask, found numpy.ma.MaskedArray; give "
                         "x.filled(value), and the mask as a tensor of its own")


def _inferred_dtype(x: Any, values: np.ndarray, backend: Backend) -> str:
    """The dtype of values for which the caller asked for none."""
    if values.dtype.kind in "iu":
        return "int32"
    name = values.dtype.name
    if name == "float64" and isinstance(x, list | tuple | int | float) and not isinstance(x, np.generic):
        return "int32" if _only_integers(x) else "float32"
    if name not in backend.dtypes:
        actual = described(x) if values.dtype.kind == "O" and not values.ndim else _dtype_words(values)
        raise DtypeError(f"[tensor] expected one of {', '.join(backend.dtypes)} on {backend.name}, found {actual}"
                         f"{'' if values.dtype.kind in _TEXTS else '; convert the array or pass dtype='}")
    return name


def _dtype_words(values: np.ndarray) -> str:
    """The kind of an array's values in words: NumPy calls a text of three letters str96."""
    return _TEXTS.get(values.dtype.kind, values.dtype.name)


def _only_integers(x: Any) -> bool:
    """True if lists hold integers only; some of them may need more than 64 bits."""
    return all(_only_integers(v) for v in x) if isinstance(x, list | tuple) and len(x) else isinstance(x, int)


def check_representable(name: str, role: str, number: float, dtype: str) -> float:
    """A number that a dtype holds; rounding does not count. Raises DtypeError for another one."""
    _check_values(f"[{name}] {role}:", np.asarray(number, np.float64), dtype)
    return number


def _check_values(whose: str, values: np.ndarray, wanted: str) -> None:
    """Raises DtypeError for a value that the conversion would change; rounding does not count as a change."""
    if values.dtype.kind not in "biuf":
        raise DtypeError(f"{whose} expected real numbers, found {_dtype_words(values)}")
    if wanted == "bool":
        bad, allowed = (values != 0) & (values != 1), "0 or 1 for dtype bool"
    elif wanted == "int32":
        with np.errstate(invalid="ignore"):
            bad = ~((values >= INT32.min) & (values <= INT32.max))
            if values.dtype.kind == "f":
                bad |= np.trunc(values) != values
        allowed = f"integers in {INT32.min} .. {INT32.max}, which int32 holds; pass dtype='float32' for others"
    else:
        limit = _LARGEST_BFLOAT16 if wanted == "bfloat16" else float(np.finfo(wanted).max)
        with np.errstate(all="ignore"):
            bad = np.isfinite(values) & (np.abs(values.astype(np.float64)) > limit)
        allowed = f"numbers up to {limit:.6g}"
    if bad.any():
        raise DtypeError(f"{whose} expected {allowed}, found {values.reshape(-1)[np.flatnonzero(bad)[0]]}")
