"""The memory of the host, for the backends that compute in it."""

from __future__ import annotations

import os
from pathlib import Path

from duoln.system import cgroup

_KIB = 1024


def free_memory(facts: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this process can use without swapping: what the machine has free, and what the limit of a container or
    job leaves. Where the system does not give the first number, it is all memory of the machine.
    """
    free = _of_machine(facts)
    left = cgroup.free_memory()
    return free if left is None else min(free, left)


def _of_machine(facts: Path) -> int:
    try:
        lines = facts.read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, or a sandbox that hides it
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
