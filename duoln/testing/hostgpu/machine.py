"""The machine that kernels run on: `engine/engine.cpp`, compiled once, and the compiler of kernels."""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(tempfile.gettempdir()) / f"duoln-hostgpu-{getpass.getuser()}"
_COMMON = ("-std=c++17", "-fPIC")
_ENGINE = ("-O2", "-fno-strict-aliasing")
_KERNEL = ("-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fsanitize=alignment",
           "-fno-sanitize-recover=alignment", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0",
           "--param=tsan-distinguish-volatile=1")
"""Every load and store of a kernel calls the machine first: these are ThreadSanitizer's calls, without its runtime."""


class HostGpuError(Exception):
    """A kernel does not compile, or does what no kernel may."""


class Argument(ctypes.Structure):
    """An argument, as `engine/state.h` has it."""

    _fields_ = [("name", ctypes.c_char_p), ("host", ctypes.c_void_p), ("bytes", ctypes.c_size_t),
                ("flags", ctypes.c_uint)]


class Request(ctypes.Structure):
    """A launch, as `engine/state.h` has it."""

    _fields_ = [("kernel", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("most_threads", ctypes.c_uint), ("shared", ctypes.c_size_t), ("most_shared", ctypes.c_size_t),
                ("most_static", ctypes.c_size_t), ("most_total", ctypes.c_size_t), ("seed", ctypes.c_uint64),
                ("cooperative", ctypes.c_int),
                ("cluster", ctypes.c_uint), ("most_cluster", ctypes.c_uint),
                ("count", ctypes.c_uint), ("arguments", ctypes.POINTER(Argument)), ("message", ctypes.c_char_p),
                ("message_size", ctypes.c_size_t)]


ARRAY, CONSTANT, RESTRICT, TABLE, REACHABLE = 1, 2, 4, 8, 16
"""The kinds of an argument, as `engine/state.h` has them."""


@cache
def engine() -> ctypes.PyDLL:
    """The machine. Python waits while it runs, because there is one for all."""
    headers = [*sorted((HERE / "engine").glob("*.h")), HERE / "device.h"]
    text = (HERE / "engine" / "engine.cpp").read_text()
    key = "\0".join((text, *(h.read_text() for h in headers)))
    return ctypes.PyDLL(str(_library(text, key, _ENGINE, HERE / "engine")), mode=ctypes.RTLD_GLOBAL)


def kernel(text: str, prelude: str) -> ctypes.CDLL:
    """The library of a kernel's text, which begins with the prelude.

    Raises:
        HostGpuError: the compiler's log.
    """
    engine()
    return ctypes.CDLL(str(_library(text, text + _headers(prelude), _KERNEL, HERE, prelude)))


@cache
def _headers(prelude: str) -> str:
    return "\0".join(("", *((HERE / name).read_text() for name in ("device.h", prelude))))


def _library(text: str, key: str, flags: tuple[str, ...], folder: Path, prelude: str = "") -> Path:
    library = CACHE / f"{_hash(key, flags)}.so"
    if library.exists():
        return library
    if shutil.which("g++") is None:
        raise HostGpuError("expected a C++ compiler to run kernels with, found no g++")
    CACHE.mkdir(mode=0o700, exist_ok=True)
    folders = [*([_precompiled(prelude)] if prelude else []), folder]
    with tempfile.TemporaryDirectory(dir=CACHE) as made:
        source, compiled, linked = (Path(made) / f"kernel.{end}" for end in ("cpp", "o", "so"))
        source.write_text(text)
        # In two steps: where the linker sees the sanitizers, it adds their runtimes.
        _run("g++", *_COMMON, *flags, *(f"-I{folder}" for folder in folders), "-c", source, "-o", compiled)
        _run("g++", "-shared", compiled, "-o", linked)
        linked.replace(library)
    return library


@cache
def _precompiled(prelude: str) -> Path:
    """The folder of the header, compiled once for all kernels: more than half of a kernel's time is that of headers."""
    folder = CACHE / _hash(_headers(prelude), _KERNEL)
    if not (folder / f"{prelude}.gch").exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            compiled = Path(made) / "header.gch"
            _run("g++", *_COMMON, *_KERNEL, f"-I{HERE}", "-x", "c++-header", HERE / prelude, "-o", compiled)
            compiled.replace(folder / f"{prelude}.gch")
    return folder


def _hash(text: str, flags: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join((text, *_COMMON, *flags)).encode()).hexdigest()[:24]


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostGpuError(f"the C++ compiler refuses the kernel:\n{done.stderr[:4000]}")
