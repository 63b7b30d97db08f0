"""How many threads work in this process, and work that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def workers() -> int:
    """The number of threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores of this process."""
    for name in ("DUOLN_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(count: int, multiple: int, work: Callable[[int, int], None]) -> None:
    """Calls `work(first, last)` for a part of `range(count)` in each thread; parts begin at multiples of `multiple`.

    All threads but the caller's are started here and end here, which takes some tenths of a millisecond. It is for
    work of NumPy's that lets other threads of Python run.
    """
    threads = min(workers(), max(count // multiple, 1))
    bounds = [count * k // threads // multiple * multiple for k in range(threads)] + [count]
    if threads == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = pool.map(work, bounds[1:-1], bounds[2:])
        work(0, bounds[1])
        list(others)  # raises what a thread raised
