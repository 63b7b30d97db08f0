"""How many threads work in this process, and work that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from duoln.errors import UsageError
from duoln.system import cgroup, variables

_THREADS = "DUOLN_THREADS"


@cache
def workers() -> int:
    """The number of threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores that this process may use.

    Raises:
        UsageError: DUOLN_THREADS is no whole number above 0.
    """
    asked = variables.count(_THREADS)
    if asked is None and os.environ.get(_THREADS):
        raise UsageError(f"[threads] {_THREADS}: expected a whole number of threads, 1 or more, found "
                         f"{os.environ[_THREADS]!r}")
    asked = asked or variables.count("OMP_NUM_THREADS")  # which may be a list, for OpenMP alone
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, cgroup.processors() or cores)


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
