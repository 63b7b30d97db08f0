"""The memory of the host, for the backends that compute in it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from duoln.system import cgroup

_KIB = 1024
_PAGES = Path("/proc/self/statm")
_LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))
"""Limits of this process, and the place in that file of the number of pages for which each is."""


def free_memory(facts: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this process can use without swapping: what the machine has free, and what the limits of a container,
    of a job and of the process (`ulimit -v`) leave. Where the system does not give the first number, it is all memory
    of the machine.
    """
    lefts = (_of_machine(facts), cgroup.free_memory(), _of_process())
    return min(left for left in lefts if left is not None)


def _of_process() -> int | None:
    limits = [(limit, place) for which, place in _LIMITS
              if (limit := resource.getrlimit(which)[0]) != resource.RLIM_INFINITY]
    if not limits:
        return None
    try:
        pages = [int(count) for count in _PAGES.read_text(encoding="ascii").split()]
    except OSError:  # no Linux, or a sandbox that hides it
        return None
    return max(min(limit - pages[place] * resource.getpagesize() for limit, place in limits), 0)


def _of_machine(facts: Path) -> int:
    try:
        lines = facts.read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, or a sandbox that hides it
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
