"""The CPU's threads and memory, as the NumPy backend's rules use them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from duoln.core.footprint import owner

PARALLEL_BYTES = 1 << 20
"""For less data than this, it costs more time to wake a thread than the thread saves."""

_LINE_BYTES = 64


@cache
def workers() -> int:
    """The number of threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores of this process."""
    for name in ("DUOLN_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.empty` that starts on a cache line, because a vector that lies in two lines takes two loads.

    NumPy's own arrays start anywhere.
    """
    count = prod(shape)
    raw = np.empty(count + _LINE_BYTES // dtype.itemsize, dtype)
    first = -_address(raw) % _LINE_BYTES // dtype.itemsize
    return raw[first:first + count].reshape(shape)


def empty_like(values: np.ndarray) -> np.ndarray:
    """`empty` of the same shape and dtype."""
    return empty(values.shape, values.dtype)


def side_by_side(parts: Sequence[np.ndarray | None], axis: int) -> np.ndarray | None:
    """The array of which these are all parts along an axis, in order; None if they do not lie so in memory."""
    first = parts[0]
    if first is None or first.size == 0:
        return None
    whole, count = owner(first), 0
    begin, step = _address(first), first.strides[axis]
    for part in parts:
        if part is None or owner(part) is not whole or part.dtype != first.dtype or part.strides != first.strides \
                or _address(part) != begin + count * step or _without(axis, part.shape) != _without(axis, first.shape):
            return None
        count += part.shape[axis]
    if not (isinstance(whole, np.ndarray) and whole.flags.c_contiguous):
        return None
    shape = (*first.shape[:axis], count, *first.shape[axis:][1:])
    return np.ndarray(shape, first.dtype, whole, begin - _address(whole), first.strides)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _without(axis: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis:][1:])
