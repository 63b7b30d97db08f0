"""The CPU's threads and memory, as the NumPy backend's rules use them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np

from duoln.core.footprint import owner
from duoln.core.step.symbol import NotBound, current_trace, is_symbol, is_traced, is_tracing, tracing
from duoln.system.limits import workers

__all__ = ["PARALLEL_BYTES", "added_up", "address", "as_array", "as_rows", "contiguous", "empty",
           "empty_like", "ones", "places", "row", "side_by_side",
           "threads_for", "workers", "zeros"]

PARALLEL_BYTES = 1 << 18
"""For less data than this, it costs more time to wake a thread than the thread saves."""

_LINE_BYTES = 64
_ALIGNED_BYTES = 1 << 12
"""An array of fewer bytes takes less time to compute than to be begun on a cache line."""


def threads_for(amount: int, least: int = PARALLEL_BYTES) -> int:
    """The number of threads for some work: one if `amount` is less than `least`, both in bytes or in another unit.

    To wake a thread takes 10 to 40 us.
    """
    return workers() if amount >= least else 1


def address(array: np.ndarray) -> int:
    """The address of an array's values, in a tenth of the time of `__array_interface__`, which makes a dict.

    NumPy's C interface promises that it follows the object's head.
    """
    if tracing and is_symbol(array):
        raise NotBound("the address of an array")
    return ctypes.c_void_p.from_address(id(array) + object.__basicsize__).value or 0


def places(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The addresses of the words that hold the arrays' addresses: for many arrays, in a fifth of the time of `address`.

    They hold as long as the result and the arrays live.
    """
    if tracing and is_traced(arrays):
        raise NotBound("the places of arrays")
    return np.fromiter(map(id, arrays), np.int64, len(arrays)) + object.__basicsize__


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.empty` that starts on a cache line, unless it is small: a vector that lies in two lines takes two loads.

    NumPy's own arrays start anywhere. While a step is bound, it is memory of that step.
    """
    if tracing and is_tracing():
        return cast(np.ndarray, current_trace().empty(shape, dtype))
    count = prod(shape)
    if count * dtype.itemsize < _ALIGNED_BYTES:
        return np.empty(shape, dtype)
    raw = np.empty(count + _LINE_BYTES // dtype.itemsize, dtype)
    first = -address(raw) % _LINE_BYTES // dtype.itemsize
    return raw[first:first + count].reshape(shape)


def zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.zeros`; while a step is bound, memory of that step."""
    if tracing and is_tracing():
        made: Any = current_trace().empty(shape, dtype)
        made[...] = 0
        return cast(np.ndarray, made)
    return np.zeros(shape, dtype)


def ones(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.ones` that nobody writes to, so that it may be a constant of a step that is bound."""
    made = np.ones(shape, dtype)
    made.flags.writeable = False
    return made


def empty_like(values: np.ndarray) -> np.ndarray:
    """`empty` of the same shape and dtype."""
    return empty(values.shape, values.dtype)


def side_by_side(parts: Sequence[np.ndarray | None], axis: int) -> np.ndarray | None:
    """The array whose consecutive views along `axis` these are; None if they are not.

    `axis` is counted from the front.
    """
    first: Any = parts[0]
    if first is None or first.size == 0:
        return None
    (memory, begin), length = _memory_of(first), 0
    whole = memory if isinstance(memory, np.ndarray) else getattr(memory, "form", None)
    if whole is None or not whole.flags.c_contiguous:
        return None
    before, after = first.shape[:axis], first.shape[axis + 1:]
    for part in parts:
        if part is None or (part.dtype, part.strides) != (first.dtype, first.strides) \
                or part.shape != (*before, part.shape[axis], *after):
            return None
        of_part, place = _memory_of(part)
        if of_part is not memory or place != begin + length * first.strides[axis]:
            return None
        length += part.shape[axis]
    shape = (*before, length, *after)
    if tracing and is_symbol(first):
        return cast(np.ndarray, first.extend_view(shape))
    return np.ndarray(shape, first.dtype, memory, begin - address(memory), first.strides)


def _memory_of(x: Any) -> tuple[Any, int]:
    """The holder of an array's memory, and where in it the array begins: an address; of a symbol, a distance."""
    return (x.buffer, x.offset) if tracing and is_symbol(x) else (owner(x), address(x))


def added_up(parts: np.ndarray) -> np.ndarray:
    """The sum of the parts of a gradient, (parts, ...): added in float64, and rounded once."""
    total: np.ndarray = parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
    return total


def as_array(x: Any) -> np.ndarray:
    """The array, or one of a scalar: NumPy's arithmetic makes scalars of arrays without axes."""
    return x if isinstance(x, np.ndarray) else np.asarray(x)


def row(words: Sequence[Any]) -> Any:
    """Numbers and the addresses of arrays, one after another; while a step is bound, its words."""
    if tracing and is_traced(words):
        return tuple(words)
    return np.array([address(x) if isinstance(x, np.ndarray) else x for x in words], np.int64)


def contiguous(x: np.ndarray) -> np.ndarray:
    """The array, or a copy in C order."""
    if x.flags.c_contiguous:
        return x
    if tracing and is_symbol(x):
        return cast(np.ndarray, current_trace().contiguous(cast(Any, x)))
    return np.ascontiguousarray(x)


def as_rows(x: np.ndarray) -> np.ndarray:
    """All axes but the last as one, side by side in memory: (..., n) to (rows, n)."""
    return contiguous(x).reshape(prod(x.shape[:-1]), x.shape[-1])
