"""Tensors of given values on a backend: constants, through which no gradient flows."""

from __future__ import annotations

from typing import Any

from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.arguments import NOT_NAN, check_integer, check_integers_in, check_number
from duoln.core.miscalled import explained
from duoln.errors import DtypeError
from duoln.ops.common import check_dtype, check_room, check_tensors


@explained
def zeros(shape: int | tuple[int, ...], backend: Backend, dtype: str = "float32") -> Tensor:
    """All 0.

    Raises:
        DtypeError: the backend lacks the dtype, or the shape is not a shape. ShapeError: a size is negative.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    sizes, dtype = _checked("zeros", shape, backend, dtype)
    return Tensor(backend.zeros(sizes, dtype), backend)


@explained
def ones(shape: int | tuple[int, ...], backend: Backend, dtype: str = "float32") -> Tensor:
    """All 1. Raises as `zeros`."""
    sizes, dtype = _checked("ones", shape, backend, dtype)
    return Tensor(backend.ones(sizes, dtype), backend)


@explained
def full(shape: int | tuple[int, ...], value: float, backend: Backend, dtype: str = "float32") -> Tensor:
    """All `value`. Raises as `zeros`."""
    sizes, dtype = _checked("full", shape, backend, dtype)
    return Tensor(backend.full(sizes, check_number("full", "value", value, NOT_NAN), dtype), backend)


@explained
def arange(stop: int, backend: Backend, dtype: str = "int32") -> Tensor:
    """The integers 0, 1, ... stop - 1. Raises as `zeros`."""
    stop = check_integer("arange", "stop", stop, 0)
    _, dtype = _checked("arange", stop, backend, dtype)
    return Tensor(backend.arange(stop, dtype), backend)


@explained
def zeros_like(x: Tensor) -> Tensor:
    """All 0, of the shape, dtype and backend of `x`."""
    check_tensors("zeros_like", x)
    return Tensor(x.backend.zeros(x.shape, x.dtype), x.backend)


@explained
def ones_like(x: Tensor) -> Tensor:
    """All 1, of the shape, dtype and backend of `x`."""
    check_tensors("ones_like", x)
    return Tensor(x.backend.ones(x.shape, x.dtype), x.backend)


def _checked(name: str, shape: Any, backend: Any, dtype: str) -> tuple[tuple[int, ...], str]:
    if not hasattr(backend, "zeros") or isinstance(backend, Tensor):
        raise DtypeError(f"[{name}] backend: expected a backend, as duoln.backend('numpy') gives it, "
                         f"found {type(backend).__name__}")
    dtype = check_dtype(name, dtype, backend)
    sizes = check_integers_in(name, "shape", shape if isinstance(shape, tuple | list) else (shape,), 0, 1 << 62)
    check_room(name, backend, sizes)
    return sizes, dtype
