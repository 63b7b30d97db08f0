"""The CPU's threads and memory, as the NumPy backend's rules use them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from math import prod

import numpy as np

from duoln.core.footprint import owner
from duoln.system.cores import workers

__all__ = ["PARALLEL_BYTES", "added_up", "address", "as_rows", "empty", "empty_like", "places", "side_by_side",
           "threads_for", "workers"]

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


def _by_interface(array: np.ndarray) -> int:
    first: int = array.__array_interface__["data"][0]
    return first


def _by_layout(array: np.ndarray) -> int:
    """NumPy's C interface promises that the address follows the object's head."""
    return ctypes.c_void_p.from_address(id(array) + object.__basicsize__).value or 0


_probe = np.zeros(1)
address = _by_layout if sys.implementation.name == "cpython" and _by_layout(_probe) == _by_interface(_probe) \
    else _by_interface
"""The address of an array's values, in a tenth of the time of `__array_interface__`, which makes a dict."""


def places(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The addresses of the words that hold the arrays' addresses: for many arrays, in a fifth of the time of `address`.

    They hold as long as the result and the arrays live.
    """
    if address is _by_layout:
        return np.fromiter(map(id, arrays), np.int64, len(arrays)) + object.__basicsize__
    words = np.array([np.arange(len(arrays)), [address(array) for array in arrays]], np.int64)
    words[0] = words[0] * words.itemsize + address(words[1])
    result: np.ndarray = words[0]
    return result


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.empty` that starts on a cache line, unless it is small: a vector that lies in two lines takes two loads.

    NumPy's own arrays start anywhere.
    """
    count = prod(shape)
    if count * dtype.itemsize < _ALIGNED_BYTES:
        return np.empty(shape, dtype)
    raw = np.empty(count + _LINE_BYTES // dtype.itemsize, dtype)
    first = -address(raw) % _LINE_BYTES // dtype.itemsize
    return raw[first:first + count].reshape(shape)


def empty_like(values: np.ndarray) -> np.ndarray:
    """`empty` of the same shape and dtype."""
    return empty(values.shape, values.dtype)


def side_by_side(parts: Sequence[np.ndarray | None], axis: int) -> np.ndarray | None:
    """The array whose consecutive views along `axis` these are; None if they are not.

    `axis` is counted from the front.
    """
    first = parts[0]
    if first is None or first.size == 0:
        return None
    memory, begin, length = owner(first), address(first), 0
    if not (isinstance(memory, np.ndarray) and memory.flags.c_contiguous):
        return None
    before, after = first.shape[:axis], first.shape[axis + 1:]
    for part in parts:
        if part is None or owner(part) is not memory or (part.dtype, part.strides) != (first.dtype, first.strides) \
                or part.shape != (*before, part.shape[axis], *after) \
                or address(part) != begin + length * first.strides[axis]:
            return None
        length += part.shape[axis]
    return np.ndarray((*before, length, *after), first.dtype, memory, begin - address(memory), first.strides)


def added_up(parts: np.ndarray) -> np.ndarray:
    """The sum of the parts of a gradient, (parts, ...): added in float64, and rounded once."""
    total: np.ndarray = parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
    return total


def as_rows(x: np.ndarray) -> np.ndarray:
    """All axes but the last as one, side by side in memory: (..., n) to (rows, n)."""
    return np.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])
