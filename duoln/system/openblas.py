"""OpenBLAS under NumPy: its CPU kernels, its number of threads, and the time that they spin after a product.

The OpenBLAS in NumPy's wheels can take AVX2 kernels on an AMD CPU that has AVX-512 (its list of CPU
models is older than the CPU). `OPENBLAS_CORETYPE=SkylakeX`, set before the library loads, mends that.
On Intel CPUs, and on AMD ones without AVX-512, its own choice is never lower, so it is left alone.

After a product OpenBLAS's threads spin for 2^26 cycles, some 20 to 80 ms. On two cores a compiled kernel that follows
then shares its core with one of them and takes two to three times as long, so they shall spin for a third of a
millisecond. If they sleep sooner, products that follow each other wait for them to wake.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from duoln.system import variables

AVX512 = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"})
_CPUINFO, _MAPS = Path("/proc/cpuinfo"), Path("/proc/self/maps")
_COUNT = "OPENBLAS_NUM_THREADS"
_SPIN = "OPENBLAS_THREAD_TIMEOUT"
_SPIN_CYCLES = "20"
"""The exponent of a power of two; OpenBLAS takes 4 to 30."""


def preferred_core(cpuinfo: str) -> str | None:
    """The core type worth asking for, from the text of /proc/cpuinfo; None to leave OpenBLAS alone."""
    fields: dict[str, str] = {}
    for line in cpuinfo.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    has_avx512 = fields.get("flags", "").split()
    if fields.get("vendor_id") == "AuthenticAMD" and AVX512.issubset(has_avx512):
        return "SkylakeX"
    return None


def spin_briefly() -> None:
    """Let OpenBLAS's threads sleep soon after a product, unless the user has set how long they spin.

    If NumPy is loaded already, its OpenBLAS reads the setting again and starts new threads at the next product,
    provided that no other thread of Python can be in a product now.
    """
    if _SPIN in os.environ:
        return
    os.environ[_SPIN] = _SPIN_CYCLES
    if "numpy" in sys.modules and threading.active_count() == 1:
        for library in map(ctypes.CDLL, _loaded_libraries()):
            if hasattr(library, "openblas_read_env") and hasattr(library, "blas_thread_shutdown_"):
                library.openblas_read_env()
                library.blas_thread_shutdown_()


def limit_threads() -> None:
    """Give OpenBLAS as many threads as DUOLN_THREADS allows, unless the user has set OPENBLAS_NUM_THREADS.

    A second thread of OpenBLAS beside one thread of duoln spins on a core that the user keeps for other work.
    """
    allowed = variables.read_positive("DUOLN_THREADS")
    if allowed is None or _COUNT in os.environ:
        return
    os.environ[_COUNT] = str(allowed)
    if "numpy" in sys.modules and (function := _function("set_num_threads")) is not None:
        function(allowed)


def choose_core() -> None:
    """Set OPENBLAS_CORETYPE where that helps and the user has not set it. Call before NumPy loads."""
    if "OPENBLAS_CORETYPE" in os.environ or not sys.platform.startswith("linux") or not _CPUINFO.exists():
        return
    core = preferred_core(_CPUINFO.read_text(encoding="utf-8", errors="replace"))
    if core:
        os.environ["OPENBLAS_CORETYPE"] = core


def loaded_core() -> str | None:
    """The core type of the loaded OpenBLAS, or None where none is loaded."""
    function = _function("get_corename")
    if function is None:
        return None
    function.restype = ctypes.c_char_p
    name: bytes = function()
    return name.decode()


def threads() -> int | None:
    """The number of threads of the loaded OpenBLAS, or None where none is loaded.

    The number decides how sums are split, and with that the last bits of a product.
    """
    function = _function("get_num_threads")
    return None if function is None else int(function())


def advice() -> str | None:
    """Advice for the user where NumPy was loaded before duoln could choose a core; None where the core is right."""
    if not _CPUINFO.exists():
        return None
    wanted, loaded = preferred_core(_CPUINFO.read_text(encoding="utf-8", errors="replace")), loaded_core()
    if not wanted or loaded is None or loaded.lower() not in {"haswell", "zen"}:
        return None
    asked = os.environ.get("OPENBLAS_CORETYPE", "")
    because = f", because OPENBLAS_CORETYPE={asked} is set" if asked.lower() == loaded.lower() else ""
    return f"OpenBLAS runs its {loaded} kernels on an AVX-512 CPU{because}; set OPENBLAS_CORETYPE={wanted}"


@cache
def _function(name: str) -> Any:
    """A function of the OpenBLAS that NumPy loaded, under any of the names its builds have; None without one."""
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        for symbol in (f"scipy_openblas_{name}64_", f"scipy_openblas_{name}", f"openblas_{name}64_",
                       f"openblas_{name}"):
            if hasattr(library, symbol):
                return getattr(library, symbol)
    return None


def _loaded_libraries() -> list[str]:
    if not _MAPS.exists():
        return []
    lines = _MAPS.read_bytes().splitlines()  # a file that is loaded may have any name
    return sorted({os.fsdecode(line.split(maxsplit=5)[-1]) for line in lines if b"openblas" in line})
