"""`add` and `multiply` of two large arrays of one shape, `where`, and the sum of all values, on the CPU, compiled.

NumPy's loops have one thread, and that of `where` takes a branch at each value, which a random condition makes slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.launch import cpp
from duoln.ops import add, multiply, sum, where
from duoln.ops.reduce import sum_vjp

_FILE = "elementwise/elementwise.cpp"
_LEAST = 1 << 12
"""Values below which a call of NumPy's `where` costs less."""
_LARGE = host.PARALLEL_BYTES // 8
"""Values below which no array has the bytes for several threads."""

_add = cpp.launch(_FILE, "add", "x: real[*size], y: real[*size] -> out: like x")
_multiply = cpp.launch(_FILE, "multiply", "x: real[*size], y: real[*size]?, y_number: float64 -> out: like x")
# `like condition` in shape alone: such a result begins on a cache line where it is large, as streaming stores need.
_where = cpp.launch(_FILE, "where", "condition: bool[*size], x: real[*size]?, y: real[*size]?, x_number: float64, "
                                       "y_number: float64 -> out: like condition")
_sum = native.Function(_FILE, "sum", "x: real[1], sums: float64[1], size: int64, length: int64, threads: int32")
_BLOCK = 1024
"""Values that are added in their own dtype; the sums of such blocks are added in float64."""


def _of_two_supports(be: Backend, x: Array | float, y: Array | float) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape and x.dtype == y.dtype):
        return "they are no arrays of one shape and dtype"
    if x.nbytes < host.PARALLEL_BYTES:
        return f"it is for at least {host.PARALLEL_BYTES} bytes"
    return native.refusal(_FILE, x.dtype)


def _add_forward(be: Backend, x: Array, y: Array) -> tuple[Array, None]:
    return _add(x, y), None


def _add_vjp(be: Backend, saved: None, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    return gout if needs[0] else None, gout if needs[1] else None


def _product(x: Array, y: Array) -> Array:
    product: Array = _multiply(x, None, float(y.flat[0])) if _is_one_number(y) else _multiply(x, y, 0.0)
    return product


def _is_one_number(x: Array) -> bool:
    """True if the array is one broadcast number, as the gradient of a sum is."""
    return not any(x.strides)


def _multiply_forward(be: Backend, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, y), (x, y)


def _multiply_vjp(be: Backend, saved: tuple[Array, Array], gout: Array,
                  needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    x, y = saved
    return _product(y, gout) if needs[0] else None, _product(x, gout) if needs[1] else None


def _where_supports(be: Backend, condition: Array, x: Array | float, y: Array | float) -> str | None:
    arrays = [a for a in (x, y) if isinstance(a, np.ndarray)]
    if any(a.shape != condition.shape for a in arrays):
        return f"it is for arrays of the shape {condition.shape} of the condition"
    if condition.size < _LEAST:
        return f"it is for at least {_LEAST} values"
    return native.refusal(_FILE, arrays[0].dtype)


def _choose(condition: Array, x: Array | float, y: Array | float) -> Array:
    chosen: Array = _where(condition, *_arrays_and_numbers(x, y))
    return chosen


def _arrays_and_numbers(x: Array | float, y: Array | float) -> list[Any]:
    """Both operands as arrays, then as numbers: None and 0 where an operand is of the other kind."""
    return [*(a if isinstance(a, np.ndarray) else None for a in (x, y)),
            *(0.0 if isinstance(a, np.ndarray) else float(a) for a in (x, y))]


def _where_forward(be: Backend, condition: Array, x: Array | float, y: Array | float) -> tuple[Array, Array]:
    return _choose(condition, x, y), condition


def _where_vjp(be: Backend, condition: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return (None, _choose(condition, gout, 0.0) if needs[1] else None,
            _choose(condition, 0.0, gout) if needs[2] else None)


def _sum_supports(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> str | None:
    if len(axis) != x.ndim or not x.flags.c_contiguous:
        return "it is for all values of a contiguous array"
    if x.nbytes < host.PARALLEL_BYTES:
        return f"it is for at least {host.PARALLEL_BYTES} bytes"
    return native.refusal(_FILE, x.dtype)


def _sum_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    sums = np.empty(-(-x.size // _BLOCK))
    _sum(np.ravel(x), sums, x.size, _BLOCK, native.threads_for(x.nbytes))
    total = np.asarray(sums.sum().astype(x.dtype))
    return total.reshape((1,) * x.ndim) if keepdims else total, (x.shape, axis)


def attach(backend: str) -> None:
    """Add the rules to the four operators."""
    if backend != "numpy":
        return
    add.add(Rule("compiled", _add_forward, _add_vjp, _of_two_supports, least=_LARGE), backend="numpy")
    multiply.add(Rule("compiled", _multiply_forward, _multiply_vjp, _of_two_supports, least=_LARGE), backend="numpy")
    where.add(Rule("compiled", _where_forward, _where_vjp, _where_supports, least=_LEAST), backend="numpy")
    sum.add(Rule("compiled", _sum_forward, sum_vjp, _sum_supports, least=_LARGE), backend="numpy")
