"""What the group of this process may use: on Linux a container, or a job of a scheduler, has such limits.

Source: the Linux kernel's `admin-guide/cgroup-v2.rst` (`cpu.max`, `memory.max`) and `cgroup-v1` (`cpu.cfs_quota_us`,
`memory.limit_in_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path

_OF_PROCESS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def processors() -> int | None:
    """How many processors' time the group may use, rounded up; None without a limit."""
    shares = []
    for folder in _folders("cpu"):
        quota, period = (*_words(folder / "cpu.max"), "", "")[:2]
        if not quota:
            quota, period = (" ".join(_words(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period):  # else "max", or -1, or no such file
            shares.append(max(ceil(int(quota) / int(period)), 1))
    return min(shares, default=None)


def free_memory() -> int | None:
    """The bytes that the group may still use, None without a limit. The cache of files counts as free."""
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


def _folders(controller: str) -> Iterator[Path]:
    """Where the kernel shows the limits of this process's group and of those around it."""
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
