"""The peak memory of this process from a moment on, without what it had then: libraries, data.

    begin(); ...; above()

Linux alone says it (`VmHWM` of /proc/self/status, which `clear_refs` resets); elsewhere `above` is None.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class _State:
    """The memory of the process at the beginning, in bytes; None before it, and where the system does not say."""

    before: int | None = None


def begin() -> None:
    """Count from now on, and give the system back what the allocator keeps of earlier work."""
    if _CLEAR.exists() and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc has it
        libc.malloc_trim(0)
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # another system than Linux: there is no figure then
        return
    _State.before = _field("VmRSS")


def above() -> int | None:
    """The peak since `begin`, in bytes, above what the process had then; None where the system does not say."""
    peak = None if _State.before is None else _field("VmHWM")
    return None if peak is None or _State.before is None else max(peak - _State.before, 0)


def _field(name: str) -> int | None:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None
