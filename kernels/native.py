"""Compiles the C++ text of a kernel with this machine's own compiler, keeps the result, and calls it.

    _forward = native.Function("layer_norm/layer_norm.cpp", "layer_norm_forward",
                               "x: real[2], gain: real[1]?, y: real[2], rows: int64, width: int64, eps: float64")
    _forward(x, gain, y, rows, width, eps)

`real` is float32 or float64, the same for all arrays of a call; the text has an entry for each, `NAME_float32` and
`NAME_float64`. A library is kept under the hash of the text, the flags, the compiler's version and the CPU, in a folder
that only the user can write. It is built aside and moved into place, so that a process that is killed, or a full disk,
leaves no half library. Where there is no compiler, or DUOLN_NATIVE=0 is set, `reason()` says so and NumPy's rules run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import host, source
from duoln.kernels.signature import Parameter, parameters
from duoln.system.cache import cache_folder

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-fno-math-errno",
         "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp-simd")
REMEDY = "install a C++ compiler (Debian: apt install g++; macOS: xcode-select --install), or name one in DUOLN_CXX"
_VERSION_SECONDS = 20
_COMPILE_SECONDS = 300
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Compiler(NamedTuple):
    """A C++ compiler of this machine."""

    path: str
    version: str
    """The first line that it gives of itself."""


class _State:
    """What one process knows of compiled kernels."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.failures: dict[str, str] = {}
        """Why a file has no library, in words."""


_state = _State()


def _new_lock_in_child() -> None:
    """A forked child has none of the threads that might hold the lock."""
    _state.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_in_child)


# The compiler ---------------------------------------------------------------------------------------------

@cache
def compiler() -> Compiler | None:
    """The compiler: DUOLN_CXX, else the first of COMPILERS on the PATH that answers; None where there is none."""
    asked = os.environ.get("DUOLN_CXX")
    for name in (asked,) if asked else COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            return Compiler(path, done.stdout.splitlines()[0])
    return None


def reason() -> str | None:
    """Why no kernel is compiled on this machine; None where they are."""
    if os.environ.get("DUOLN_NATIVE") == "0":
        return "DUOLN_NATIVE=0 is set"
    if sys.platform == "win32":
        return "kernels are not compiled on Windows"
    if compiler() is None:
        asked = os.environ.get("DUOLN_CXX")
        return f"DUOLN_CXX={asked} is no compiler that answers" if asked else \
            f"no C++ compiler of {', '.join(COMPILERS)} is on the PATH"
    return _folder_problem(_folder())


@cache
def _folder_problem(folder: Path) -> str | None:
    """Why compiled kernels cannot be kept, if they cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror or error}"
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if facts.st_mode & _OTHERS_MAY_WRITE:
        return f"{folder} can be written by others; make it yours alone with chmod 700"
    return None


def _folder() -> Path:
    return cache_folder() / "native"


@cache
def _cpu() -> str:
    """What of the CPU decides the code that `-march=native` gives."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        wanted = ("model name", "flags", "Features", "CPU part")
        lines = [line for line in info.read_text().splitlines() if line.startswith(wanted)]
        return "\n".join(dict.fromkeys(lines))
    return f"{platform.machine()} {platform.processor()}"


# Libraries ------------------------------------------------------------------------------------------------

def library_path(file: str, chosen: Compiler) -> Path:
    """Where the library of `kernels/<file>` is kept."""
    parts = (source.text(file), *FLAGS, chosen.path, chosen.version, _cpu())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return _folder() / f"{Path(file).stem}-{digest}.so"


def library(file: str) -> ctypes.CDLL | None:
    """The library of `kernels/<file>`, compiled if it is not there; None where that is not possible.

    The first call compiles every kernel that is missing, side by side, and says so in one line.
    """
    if file in _state.libraries:
        return _state.libraries[file]
    with _state.lock:
        if file not in _state.libraries and file not in _state.failures:
            _load(file)
    return _state.libraries.get(file)


def failure(file: str) -> str | None:
    """Why `kernels/<file>` has no library; None where it has one."""
    if file in _state.libraries and os.environ.get("DUOLN_NATIVE") != "0":
        return None  # every call of an operator asks
    return reason() or (None if library(file) is not None else _state.failures.get(file, "it was not compiled"))


def _load(file: str) -> None:
    problem = reason()
    chosen = compiler()
    if problem is not None or chosen is None:
        _state.failures[file] = problem or "there is no compiler"
        return
    path = library_path(file, chosen)
    try:
        if not path.is_file():
            compile_all(chosen)
        if file in _state.failures:
            return
        try:
            _state.libraries[file] = _opened(path)
        except (OSError, ValueError):
            path.unlink(missing_ok=True)  # it was cut short, or its bits have changed: it is made again, once
            compile_all(chosen)
            _state.libraries[file] = _opened(path)
    except (OSError, ValueError) as error:
        _state.failures[file] = f"no library of it can be kept in {path.parent}: {error}"


def _opened(path: Path) -> ctypes.CDLL:
    for each in (path, _checksum_path(path)):
        facts = each.lstat()
        if not stat.S_ISREG(facts.st_mode) or (hasattr(os, "getuid") and facts.st_uid != os.getuid()) \
                or facts.st_mode & _OTHERS_MAY_WRITE:
            raise OSError(f"{each} is not a file of this user alone")
    if _checksum(path) != _checksum_path(path).read_text(encoding="ascii"):
        raise OSError(f"{path} is not what was compiled")  # to load half a library ends the process
    return ctypes.CDLL(str(path))


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _checksum_path(path: Path) -> Path:
    """The file that holds a library's SHA-256."""
    return path.with_suffix(".sha256")


def sources() -> list[str]:
    """The C++ files of all kernels, relative to `kernels/`."""
    return sorted(path.relative_to(source.FOLDER).as_posix() for path in source.FOLDER.glob("*/*.cpp"))


def compile_all(chosen: Compiler) -> None:
    """Compile every kernel whose library is missing, as many side by side as there are cores."""
    missing = [file for file in sources() if not library_path(file, chosen).is_file()]
    if not missing:
        return
    _tell(f"duoln: compiling {len(missing)} kernels for this CPU with {chosen.version} (once)")
    with tempfile.TemporaryDirectory(dir=_folder(), prefix="building-") as aside:
        waiting = list(missing)
        running: list[tuple[str, list[str], Path, subprocess.Popen[str]]] = []
        try:
            while waiting or running:
                while waiting and len(running) < host.workers():
                    running.append(_started(waiting.pop(0), chosen, Path(aside)))
                _finish(*running.pop(0), chosen)
        finally:  # after Ctrl-C or a full disk no compiler stays behind
            for *_, process in running:
                process.kill()
                process.wait()


def _started(file: str, chosen: Compiler, aside: Path) -> tuple[str, list[str], Path, subprocess.Popen[str]]:
    text, built = aside / f"{Path(file).stem}.cpp", aside / f"{Path(file).stem}.so"
    text.write_text(source.text(file), encoding="utf-8")
    command = [chosen.path, *FLAGS, str(text), "-o", str(built)]
    return file, command, built, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(file: str, command: Sequence[str], built: Path, process: subprocess.Popen[str], chosen: Compiler) -> None:
    try:
        log, _ = process.communicate(timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        log = f"stopped after {_COMPILE_SECONDS} s"
    if process.returncode == 0 and built.is_file():
        path = library_path(file, chosen)
        checksum = _checksum_path(built)
        checksum.write_text(_checksum(built), encoding="ascii")
        for made in (checksum, built):
            made.chmod(0o600)
        checksum.replace(_checksum_path(path))
        built.replace(path)
        return
    _state.failures[file] = f"{file} does not compile"
    _say(f"duoln: {file} does not compile, NumPy's rule runs instead\n  {' '.join(command)}\n{log}")


def facts() -> dict[str, str]:
    """What `duoln doctor` and the records of benchmarks say of compiled kernels on this machine."""
    problem, chosen = reason(), compiler()
    if problem is not None or chosen is None:
        return {"rules": "interpreted", "reason": problem or "there is no compiler", "remedy": REMEDY}
    return {"rules": "compiled", "compiler": chosen.version, "flags": " ".join(FLAGS), "folder": str(_folder())}


def _tell(line: str) -> None:
    """One line for a person who waits; a pipe or a log is spared it."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Calls ----------------------------------------------------------------------------------------------------

_NUMBERS: dict[str, Any] = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
                            "float64": ctypes.c_double}
_REALS = ("float32", "float64")


class Function:
    """An entry point of a C++ file, with checked arguments.

    Args:
        file: below `kernels/`.
        entry: its name without the dtype's ending.
        signature: the parameters, see `duoln.kernels.signature`; `real` is the dtype that the call chooses.
    """

    def __init__(self, file: str, entry: str, signature: str) -> None:
        self.file, self.entry = file, entry
        self._parameters = parameters(signature)
        self._entries: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> None:
        """Call it on C-contiguous arrays, None and numbers.

        Raises:
            KernelError: another number of arguments, or no library.
            DtypeError, ShapeError: an argument of another kind; the message names it.
        """
        if len(arguments) != len(self._parameters):
            raise KernelError(f"[{self.entry}] expected {len(self._parameters)} arguments, found {len(arguments)}")
        real = ""
        passed = []
        for parameter, argument in zip(self._parameters, arguments, strict=True):
            if parameter.rank is None:
                passed.append(argument)
                continue
            if argument is None and parameter.optional:
                passed.append(None)
                continue
            if parameter.dtype == "real" and not real and isinstance(argument, np.ndarray):
                real = argument.dtype.name
            passed.append(self._address(parameter, argument, real))
        self._entry(real)(*passed)

    def _address(self, parameter: Parameter, argument: Any, real: str) -> int:
        wanted = real if parameter.dtype == "real" else parameter.dtype
        if not isinstance(argument, np.ndarray) or argument.dtype != wanted or wanted == "":
            raise DtypeError(f"[{self.entry}] {parameter.name}: expected {parameter}, found "
                             f"{argument.dtype.name if isinstance(argument, np.ndarray) else type(argument).__name__}")
        if argument.ndim != parameter.rank or not argument.flags.c_contiguous:
            kind = "a strided" if argument.ndim == parameter.rank else "an"
            raise ShapeError(f"[{self.entry}] {parameter.name}: expected {parameter}, found {kind} array of shape "
                             f"{argument.shape}")
        address: int = argument.__array_interface__["data"][0]
        return address

    def _entry(self, real: str) -> Any:
        if real not in self._entries:
            loaded = library(self.file)
            if loaded is None:
                raise KernelError(f"[{self.entry}] {failure(self.file)}")
            if real not in _REALS:
                raise DtypeError(f"[{self.entry}] expected arrays of {' or '.join(_REALS)}, found {real or 'none'}")
            function = getattr(loaded, f"{self.entry}_{real}")
            function.restype = None
            function.argtypes = [ctypes.c_void_p if p.rank is not None else _NUMBERS[p.dtype] for p in self._parameters]
            self._entries[real] = function
        return self._entries[real]


def threads_for(count_bytes: int) -> int:
    """How many threads for work on so many bytes: a thread costs some tens of microseconds to start."""
    return host.workers() if count_bytes >= host.PARALLEL_BYTES else 1
