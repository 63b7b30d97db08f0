"""The memory of the host, for the backends that compute in it."""

from __future__ import annotations

import os
from pathlib import Path

_KIB = 1024


def free_memory(facts: Path = Path("/proc/meminfo")) -> int:
    """Bytes that a process can use without swapping. Where the system does not give that number, all memory of the
    machine.
    """
    try:
        lines = facts.read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, or a sandbox that hides it
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
