"""The CPU's threads and memory, as the NumPy backend's rules use them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

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
    first = -raw.__array_interface__["data"][0] % _LINE_BYTES // dtype.itemsize
    return raw[first:first + count].reshape(shape)


def empty_like(values: np.ndarray) -> np.ndarray:
    """`empty` of the same shape and dtype."""
    return empty(values.shape, values.dtype)
