"""The use of the CPU by the NumPy rules: blocks that stay in cache, scratch that is reused, threads over blocks.

NumPy's ufuncs release the interpreter lock, so two threads can work on row blocks at the same time. Each thread
keeps its scratch buffers, because new memory costs more time than the arithmetic.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache
from itertools import pairwise
from math import prod
from typing import TypeVar

import numpy as np

from duoln.system import openblas

BLOCK_BYTES = 1 << 19
"""A block and its scratch stay in L2 and L3. Smaller blocks cost more time in calls than they save: a NumPy call takes
about a microsecond, and a wait for the interpreter lock takes some tens of microseconds."""
PARALLEL_BYTES = 1 << 20
"""For less data than this, it costs more time to wake a thread than the thread saves."""

_LINE_BYTES = 64
_SWITCH_SECONDS = 5e-5

Result = TypeVar("Result")

_scratch = threading.local()


class _Settings:
    """Settings of the whole process that change while tasks run side by side, and their values before that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.before: tuple[float, int] | None = None
        """The interpreter's switch interval and the threads of BLAS; None if they have not been changed."""


_settings = _Settings()


@cache
def workers() -> int:
    """The number of threads: DUOLN_THREADS, else OMP_NUM_THREADS, else the cores of this process."""
    for name in ("DUOLN_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers() - 1, thread_name_prefix="duoln-rows")


def _forget_threads() -> None:
    """Make a new pool and lock in a forked child, which has only the thread that forked."""
    global _settings  # noqa: PLW0603
    if _settings.before is not None:
        interval, blas_threads = _settings.before
        sys.setswitchinterval(interval)
        openblas.set_threads(blas_threads)
    _settings = _Settings()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.empty` that starts on a cache line.

    NumPy's own arrays start anywhere. A pass over rows of one page (1024 floats) can then take up to ten times as
    long, because the CPU delays a load if a store has the same offset in another page.
    """
    count = prod(shape)
    raw = np.empty(count + _LINE_BYTES // dtype.itemsize, dtype)
    first = -raw.__array_interface__["data"][0] % _LINE_BYTES // dtype.itemsize
    return raw[first:first + count].reshape(shape)


def empty_like(values: np.ndarray) -> np.ndarray:
    """`empty` of the same shape and dtype."""
    return empty(values.shape, values.dtype)


def scratch(name: str, size: int, dtype: np.dtype) -> np.ndarray:
    """A flat buffer of this thread; its content is not defined."""
    key = f"{name} {dtype}"
    buffer: np.ndarray | None = getattr(_scratch, key, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(size, dtype)
        setattr(_scratch, key, buffer)
    return buffer[:size]


def rows_per_block(width: int, itemsize: int) -> int:
    """The number of rows of `width` values in a block."""
    return max(BLOCK_BYTES // max(width * itemsize, 1), 1)


def over_rows(rows: int, row_bytes: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, stop)` until all rows are covered, in parallel if there is enough to do.

    The parts do not depend on timing, so neither do the results.
    """
    parts = workers() if rows * row_bytes >= PARALLEL_BYTES else 1
    bounds = [rows * i // parts for i in range(parts + 1)]
    waiting = [_pool().submit(copy_context().run, work, a, b) for a, b in pairwise(bounds[1:]) if b > a]
    if bounds[1] > 0:
        work(0, bounds[1])
    for task in waiting:
        task.result()


def independent_workers() -> int:
    """The number of threads that may call BLAS at once: one if BLAS cannot be limited to its caller."""
    return workers() if openblas.can_limit() else 1


def side_by_side(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks. Each task has its own thread, and BLAS uses only the calling thread.

    The interpreter's switch interval is short during this time. With the usual interval, a thread that returns from a
    NumPy call would wait up to 5 ms while another thread makes short calls.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    with _settings.lock:  # they belong to the process: two callers would restore each other's values
        interval = sys.getswitchinterval()
        _settings.before = interval, openblas.threads() or 1
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            with openblas.one_thread():
                waiting = [_pool().submit(copy_context().run, task) for task in tasks[1:]]
                try:
                    first = tasks[0]()
                finally:
                    wait(waiting)
                return [first, *(task.result() for task in waiting)]
        finally:
            sys.setswitchinterval(interval)
            _settings.before = None
