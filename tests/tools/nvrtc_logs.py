"""What NVIDIA's compiler says of a kernel: its registers, and what it spills."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from duoln import kernels
from duoln.kernels import settings, source
from duoln.kernels.launch import Launch
from duoln.testing.nvrtc import log, version

__all__ = ["log", "version"]

PLUGINS = ("draw",)
"""The plug-ins that have CUDA kernels."""
_ENTRY = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)


class Use(NamedTuple):
    """What one kernel uses."""

    registers: int
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


def used(text: str) -> dict[str, Use]:
    """What each entry point uses, from a log."""
    return {entry: Use(int(registers), int(stores) + int(loads)) for entry, stores, loads, registers in _ENTRY.findall(text)}
