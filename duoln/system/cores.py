"""Threads of this process: their number, their start, and work that they share."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from functools import cache

from duoln.errors import UsageError
from duoln.system import limits, variables

_THREADS = "DUOLN_THREADS"


@cache
def workers() -> int:
    """The number of threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores that this process may use.

    Raises UsageError where DUOLN_THREADS is no whole number above 0.
    """
    asked = variables.read_positive(_THREADS)
    if asked is None and os.environ.get(_THREADS):
        raise UsageError(f"[threads] {_THREADS}: expected a whole number of threads, 1 or more, found "
                         f"{os.environ[_THREADS]!r}")
    asked = asked or variables.read_positive("OMP_NUM_THREADS")  # which may be a list, for OpenMP alone
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, limits.processors() or cores)


def in_threads(count: int, multiple: int, work: Callable[[int, int], None]) -> None:
    """Calls `work(first, last)` for parts of `range(count)` in threads; parts begin at multiples of `multiple`.

    All threads but the caller's are started here and end here, which takes some tenths of a millisecond. It is for
    work of NumPy's that lets other threads of Python run. Where the system gives fewer threads, those that there are
    do the work, the caller's alone if need be.
    """
    threads = min(workers(), max(count // multiple, 1))
    bounds = [count * k // threads // multiple * multiple for k in range(threads)] + [count]
    parts = iter(list(itertools.pairwise(bounds)))  # shared: a part belongs to the thread that takes it
    failures: list[BaseException] = []

    def take_parts() -> None:
        try:
            for first, last in parts:
                work(first, last)
        except BaseException as error:
            failures.append(error)

    others = [thread for _ in range(threads - 1) if (thread := start_thread(take_parts)) is not None]
    take_parts()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]


def start_thread(work: Callable[[], object], daemon: bool = False) -> threading.Thread | None:
    """A thread that has begun `work`; None where the system gives no more threads, as under `ulimit -u`."""
    thread = threading.Thread(target=work, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
