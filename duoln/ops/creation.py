"""Tensors of given values: constants, through which no gradient flows.

The backend is given, or the one that `duoln.backend()` chooses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import REALS, Backend
from duoln.core import Tensor
from duoln.core.arguments import LARGEST, NOT_NAN, check_flag, check_integer, check_integers_in, check_number
from duoln.core.entering import backend_or_default, check_representable
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_tensors
from duoln.core.tensor import constant_tensor
from duoln.errors import DtypeError, ShapeError
from duoln.ops.common import check_dtype, check_room

Where = Backend | str | None


@hinted
def zeros(shape: int | tuple[int, ...], backend: Where = None, dtype: str = "float32") -> Tensor:
    """All 0.

    Raises:
        DtypeError: the backend lacks the dtype, or the shape is not a shape. ShapeError: a size is negative.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    sizes, where, dtype = _check_creation("zeros", shape, backend, dtype)
    return constant_tensor(where.zeros(sizes, dtype), where)


@hinted
def ones(shape: int | tuple[int, ...], backend: Where = None, dtype: str = "float32") -> Tensor:
    """All 1. Raises as `zeros`."""
    sizes, where, dtype = _check_creation("ones", shape, backend, dtype)
    return constant_tensor(where.ones(sizes, dtype), where)


@hinted
def full(shape: int | tuple[int, ...], fill_value: float, backend: Where = None, dtype: str = "float32") -> Tensor:
    """All `fill_value`.

    Raises:
        DtypeError: the dtype cannot hold the value. The rest as `zeros`.
    """
    sizes, where, dtype = _check_creation("full", shape, backend, dtype)
    return constant_tensor(where.full(sizes, _check_fill_value("full", fill_value, dtype), dtype), where)


@hinted
def arange(start: int, stop: int | None = None, step: int = 1, backend: Where = None, dtype: str = "int32") -> Tensor:
    """The integers start, start + step, ... before `stop`; with one number, 0, 1, ... before it.

    Raises:
        ShapeError: the step is 0. The rest as `zeros`.
    """
    first = check_integer("arange", "start", start)
    last = first if stop is None else check_integer("arange", "stop", stop)
    first = 0 if stop is None else first
    step = check_integer("arange", "step", step)
    if not step:
        raise ShapeError("[arange] step: expected an integer other than 0, found 0")
    count = max(-(-(last - first) // step), 0)
    _, where, dtype = _check_creation("arange", count, backend, dtype)
    ramp = where.arange(count)
    if (first, step) != (0, 1):
        ramp = ramp * step + first
    return constant_tensor(where.astype(ramp, dtype) if dtype != "int32" else ramp, where)


@hinted
def zeros_like(x: Tensor) -> Tensor:
    """All 0, of the shape, dtype and backend of `x`."""
    check_tensors("zeros_like", x)
    return constant_tensor(x.backend.zeros(x.shape, x.dtype), x.backend)


@hinted
def ones_like(x: Tensor) -> Tensor:
    """All 1, of the shape, dtype and backend of `x`."""
    check_tensors("ones_like", x)
    return constant_tensor(x.backend.ones(x.shape, x.dtype), x.backend)


@hinted
def full_like(x: Tensor, fill_value: float) -> Tensor:
    """All `fill_value`, of the shape, dtype and backend of `x`. Raises as `full`."""
    check_tensors("full_like", x)
    value = _check_fill_value("full_like", fill_value, x.dtype)
    return constant_tensor(x.backend.full(x.shape, value, x.dtype), x.backend)


@hinted
def eye(n_rows: int, n_cols: int | None = None, k: int = 0, backend: Where = None, dtype: str = "float32") -> Tensor:
    """1 on the diagonal `k` above the main one of a matrix, which is square without `n_cols`; 0 elsewhere.

    Raises as `zeros`.
    """
    rows = check_integer("eye", "n_rows", n_rows, 0)
    columns = rows if n_cols is None else check_integer("eye", "n_cols", n_cols, 0)
    k = check_integer("eye", "k", k, -LARGEST // 2, LARGEST // 2)
    _, where, dtype = _check_creation("eye", (rows, columns), backend, dtype)
    row = where.reshape(where.arange(rows) + k, (rows, 1))
    return constant_tensor(where.astype(row == where.arange(columns), dtype), where)


@hinted
def linspace(start: float, stop: float, num: int, endpoint: bool = True, backend: Where = None,
             dtype: str = "float32") -> Tensor:
    """Evenly spaced numbers from `start` on, `stop` among them if `endpoint` is set. Raises as `zeros`."""
    num = check_integer("linspace", "num", num, 0)
    endpoint = check_flag("linspace", "endpoint", endpoint)
    _, where, dtype = _check_creation("linspace", num, backend, dtype)
    if dtype not in REALS:
        raise DtypeError(f"[linspace] dtype: expected a float dtype, found {dtype}")
    first, last = (check_representable("linspace", role, check_number("linspace", role, x), dtype)
                   for role, x in (("start", start), ("stop", stop)))
    return constant_tensor(where.asarray(np.linspace(first, last, num, endpoint=endpoint), dtype), where)


def _check_fill_value(name: str, value: Any, dtype: str) -> float:
    """A number that is not NaN and that the dtype holds; True and False are for bool alone."""
    is_bool = dtype == "bool" and isinstance(value, bool)
    return check_representable(name, "fill_value", float(value) if is_bool else
                               check_number(name, "fill_value", value, NOT_NAN), dtype)


def _check_creation(name: str, shape: Any, backend: Any, dtype: str) -> tuple[tuple[int, ...], Backend, str]:
    if backend is None or isinstance(backend, str):
        backend = backend_or_default(backend)
    if not hasattr(backend, "zeros") or isinstance(backend, Tensor):
        raise DtypeError(f"[{name}] backend: expected a backend or its name, found "
                         f"{type(backend).__name__}")
    dtype = check_dtype(name, dtype, backend)
    sizes = check_integers_in(name, "shape", shape if isinstance(shape, tuple | list) else (shape,), 0, 1 << 62)
    check_room(name, backend, sizes)
    return sizes, backend, dtype
