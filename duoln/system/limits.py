"""The processors and the memory that this process may use on the host, and threads that share work.

On Linux a container, or a job of a scheduler, is a control group with limits. Source: the Linux kernel's
`admin-guide/cgroup-v2.rst` (`cpu.max`, `memory.max`) and `cgroup-v1` (`cpu.cfs_quota_us`, `memory.limit_in_bytes`).
"""

from __future__ import annotations

import functools
import itertools
import os
import resource
import threading
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path

from duoln.errors import UsageError
from duoln.system import variables

_OF_PROCESS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_KIB = 1024
_THREADS = "DUOLN_THREADS"
_PAGES = Path("/proc/self/statm")
_LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))
"""Limits of this process, each with the column of `_PAGES` that counts against it."""


def processors() -> int | None:
    """The number of processors whose time the group may use, rounded up; None without a limit."""
    shares = []
    for folder in _folders("cpu"):
        quota, period = (*_words(folder / "cpu.max"), "", "")[:2]
        if not quota:
            quota, period = (" ".join(_words(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period):  # else "max", or -1, or no such file
            shares.append(max(ceil(int(quota) / int(period)), 1))
    return min(shares, default=None)


def free_memory(facts: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this process can use without swapping: the least of what the machine has free and what the limits of
    the group and of the process (`ulimit -v`) leave. Where the system does not give the first number, it is all memory
    of the machine.
    """
    lefts = (_machine_free(facts), memory_of_group(), _process_free())
    return min(left for left in lefts if left is not None)


def memory_of_group() -> int | None:
    """The bytes that the group may still use; None without a limit. The cache of files counts as free."""
    left = []
    for folder in _folders("memory"):
        for limit, used, cache in (("memory.max", "memory.current", "inactive_file"),
                                   ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
            allowed, taken = ("".join(_words(folder / name)) for name in (limit, used))
            if allowed.isdecimal() and taken.isdecimal():
                statistics = _words(folder / "memory.stat")
                kept = dict(zip(statistics[::2], statistics[1::2], strict=False)).get(cache, "0")
                left.append(max(int(allowed) - int(taken) + int(kept), 0))
    return min(left, default=None)


def _process_free() -> int | None:
    limits = [(limit, column) for which, column in _LIMITS
              if (limit := resource.getrlimit(which)[0]) != resource.RLIM_INFINITY]
    pages = [int(count) for count in _words(_PAGES)] if limits else []
    if not pages:
        return None
    return max(min(limit - pages[column] * resource.getpagesize() for limit, column in limits), 0)


def _machine_free(facts: Path) -> int:
    for line in _lines(facts):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _folders(controller: str) -> Iterator[Path]:
    """The folders with the limits of this process's group and of those around it."""
    for line in _lines(_OF_PROCESS):
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and controller not in names.split(","):
            continue
        root = _ROOT / controller if names else _ROOT
        group = Path(path.lstrip("/"))
        yield from (root / part for part in (group, *group.parents))


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # no Linux, no such controller, or a sandbox that hides it
        return []


# Threads ------------------------------------------------------------------------------------------------

@functools.cache
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
    return min(cores, processors() or cores)


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

    others: list[threading.Thread] = []
    for _ in range(threads - 1):
        thread = threading.Thread(target=take_parts)
        try:
            thread.start()
        except RuntimeError:  # no more threads, as under `ulimit -u`
            break
        others.append(thread)
    take_parts()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
