"""Facts about a measurement besides its times: the host, the variables that are set, the peak memory."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import duoln
from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.system import openblas

FLAGS = ("MLX_ENABLE_TF32", "CUPY_TF32", "OPENBLAS_CORETYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
         "DUOLN_THREADS", "DUOLN_RULES", "DUOLN_PROVE", "DUOLN_WALK", "DUOLN_NATIVE", "DUOLN_CXX", "DUOLN_KERNELS",
         "DUOLN_MALLOPT", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Environment variables that change arithmetic or its speed."""

_IDLE_LOAD = 0.5


def flags() -> dict[str, str]:
    """The variables in FLAGS that are set."""
    return {name: os.environ[name] for name in FLAGS if name in os.environ}


def host() -> dict[str, Any]:
    """The computer and its version of Python."""
    return {"cpu": _cpu(), "cores": os.cpu_count() or 1, "ram": _ram(), "os": platform.platform(),
            "python": platform.python_version()}


def process_facts() -> dict[str, Any]:
    """The libraries and settings of the process of one side."""
    return {"duoln": duoln.__version__, "numpy": np.__version__, "blas_core": openblas.loaded_core(), "flags": flags(),
            "native": runtime.native_facts()}


def backend_facts(backend: Backend) -> dict[str, str]:
    """A backend's name, its own description of its library and device, and how its rules are compiled or proved."""
    facts = {"name": backend.name, **backend.info()}
    if backend.name == "numpy":
        native = runtime.native_facts()
        facts |= {key: native[key] for key in ("rules", "compiler", "flags", "vector_bits", "reason") if key in native}
    if backend.proofs is not None:
        facts |= {f"rules {state}": ", ".join(names) for state, names in backend.proofs.summary().items()}
    return facts


def default_label(backend: Backend) -> str:
    """A name for measurements of this machine: its platform and the device."""
    return f"{platform.system()} {platform.machine()}, {backend.device}, {backend.name}"


def load_remark() -> str | None:
    """A remark if other work was running on this machine in the last minute; None where the system does not say."""
    if not hasattr(os, "getloadavg"):
        return None
    load = os.getloadavg()[0]
    if load < _IDLE_LOAD:
        return None
    return f"load {load:.1f} on {os.cpu_count()} cores: other work is running, or was a moment ago; times will be off"


def _cpu() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


def _ram() -> int | None:
    """Bytes of memory, where the system says."""
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    return None


# Memory ---------------------------------------------------------------------------------------------------

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class _State:
    """The memory of the process at the beginning, in bytes; None before it, and where the system does not say."""

    before: int | None = None


def begin_peak() -> None:
    """Count from now on, and give the system back what the allocator keeps of earlier work."""
    if _CLEAR.exists() and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc has it
        libc.malloc_trim(0)
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # another system than Linux: there is no figure then
        return
    _State.before = _field("VmRSS")


def peak() -> int | None:
    """The peak since `begin_peak` above what the process had then, libraries and data, in bytes. Linux alone says it
    (`VmHWM` of /proc/self/status, which `clear_refs` resets); elsewhere it is None.
    """
    most = None if _State.before is None else _field("VmHWM")
    return None if most is None or _State.before is None else max(most - _State.before, 0)


def _field(name: str) -> int | None:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None
