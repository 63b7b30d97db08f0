"""How the NumPy rules use the CPU: blocks that stay in cache, scratch that is reused, threads over blocks.

NumPy's ufuncs release the interpreter lock, so two threads over row blocks run side by side. Each thread
keeps its scratch buffers: fresh memory costs more than the arithmetic.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np

BLOCK_BYTES = 1 << 19
"""A block and all that goes with it stay in L2 and L3. Smaller ones cost more in calls than they save: a
NumPy call is about a microsecond, and a thread that waits for the interpreter lock some tens of them."""
PARALLEL_BYTES = 1 << 20
"""Below this much data waking a thread costs more than it saves."""

_scratch = threading.local()


@cache
def workers() -> int:
    """How many threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores this process may use."""
    for name in ("DUOLN_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers() - 1, thread_name_prefix="duoln-rows")


def scratch(name: str, size: int, dtype: np.dtype) -> np.ndarray:
    """A flat buffer of this thread, whose content is whatever was left in it."""
    key = f"{name} {dtype}"
    found: np.ndarray | None = getattr(_scratch, key, None)
    if found is None or found.size < size:
        found = np.empty(size, dtype)
        setattr(_scratch, key, found)
    return found[:size]


def rows_per_block(width: int, itemsize: int) -> int:
    """How many rows of `width` values make a block."""
    return max(BLOCK_BYTES // max(width * itemsize, 1), 1)


def over_rows(rows: int, row_bytes: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, stop)` until all rows are covered, in parallel if there is enough to do.

    The parts do not depend on timing, so neither do the results.
    """
    parts = workers() if rows * row_bytes >= PARALLEL_BYTES else 1
    bounds = [rows * i // parts for i in range(parts + 1)]
    waiting = [_pool().submit(work, a, b) for a, b in pairwise(bounds[1:]) if b > a]
    if bounds[1] > 0:
        work(0, bounds[1])
    for other in waiting:
        other.result()
