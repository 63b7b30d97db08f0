"""What NVIDIA's compiler says of a kernel: its registers, its shared memory, what it spills. No GPU or driver is needed.

`pip install duoln[test]` brings the compiler on Linux. Its logs are kept from one run to the next, as compiled kernels are.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from duoln import kernels
from duoln.kernels import settings, source
from duoln.kernels.launch import Launch

KEPT = Path(tempfile.gettempdir()) / f"duoln-nvrtc-{getpass.getuser()}"
PLUGINS = ("draw",)
"""The plug-ins that have CUDA kernels."""
_ENTRY = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
                    re.S)
_SHARED = re.compile(r"(\d+) bytes smem")


class Use(NamedTuple):
    """What one kernel uses."""

    registers: int
    shared: int
    """Bytes of shared memory that the text declares."""
    spilled: int
    """Bytes of spill stores and loads."""


def files() -> list[Path]:
    """Every CUDA text but those of walks, whose settings depend on the device."""
    folders = [Path(kernels.__file__).parent,
               *(Path(str(importlib.import_module(f"duoln.plugins.{name}").__file__)).parent for name in PLUGINS)]
    return sorted(path for folder in folders for path in folder.rglob("*.cu") if not path.name.startswith("walk"))


def name_of(path: Path) -> str:
    """Below `kernels/`, or the whole path of a plug-in's."""
    return path.relative_to(source.FOLDER).as_posix() if path.is_relative_to(source.FOLDER) else str(path)


@cache
def every_setting() -> list[tuple[str, Mapping[str, int]]]:
    """Pairs of a source file and its macros: the library's, below `kernels/`, and the plug-ins', whole. Each call takes seconds."""
    for name in PLUGINS:
        importlib.import_module(f"duoln.plugins.{name}")
    names = set(map(name_of, files()))  # and no texts of other tests
    of_plugins = {(file, tuple(macros.items())) for launch in Launch.every
                  if Path(launch.file).is_absolute() and f"{launch.file}.cu" in names for file, macros in launch.settings()}
    return [*settings.every_setting(), *((file, dict(macros)) for file, macros in sorted(of_plugins))]


@cache
def version() -> str | None:
    """The compiler's version; None where there is none."""
    try:
        return ".".join(map(str, _nvrtc().getVersion()))
    except (ImportError, RuntimeError):
        return None


def _nvrtc() -> Any:
    return importlib.import_module("cupy_backends.cuda.libs.nvrtc")


def log(text: str, macros: Mapping[str, int], architecture: str) -> str:
    """The compiler's log for a text.

    Raises:
        AssertionError: it does not compile; the message has the log.
    """
    nvrtc = _nvrtc()
    options = (f"--gpu-architecture={architecture}", "--std=c++17", "-ftz=true", "--ptxas-options=-v",
               *(f"-D{k}={v}" for k, v in macros.items()))
    key = "\0".join((text, *options, *map(str, nvrtc.getVersion())))
    kept = KEPT / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.log"
    if kept.exists():
        return kept.read_text()
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
    except Exception as error:
        raise AssertionError(f"{architecture} {dict(macros)}: {nvrtc.getProgramLog(program)}") from error
    assert len(nvrtc.getCUBIN(program)) > 0
    made: str = nvrtc.getProgramLog(program)
    KEPT.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=KEPT, delete=False) as part:
        part.write(made)
    Path(part.name).replace(kept)
    return made


def used(text: str) -> dict[str, Use]:
    """What each entry point uses, from a log."""
    uses = {}
    for entry, stores, loads, registers, rest in _ENTRY.findall(text):
        shared = _SHARED.search(rest)
        uses[entry] = Use(int(registers), int(shared[1]) if shared else 0, int(stores) + int(loads))
    return uses
