"""The folder of compiled kernels: a library and its record for each source text, dtype, compiler and CPU.

A folder or file that others can write is refused, and so is one of another user, except root's: an image's folder is
root's, and the program in it need not be.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError, KernelError
from duoln.kernels import source
from duoln.kernels.native import processor, toolchain
from duoln.kernels.native.toolchain import NATIVE, Compiler
from duoln.system.filesystem import make_folder
from duoln.system.paths import cache_folder, in_home

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
REALS = {"float32": "-DREAL_BITS=32", "float64": "-DREAL_BITS=64"}
"""The dtypes that kernels are compiled for, and what tells the compiler, see `NAMED` in common.h."""
_ENTRY = re.compile(r'extern "C" \w+ NAMED\(([a-z]\w*)\)\(')
_OF_HEADER = "duoln_take_failures"
"""A function that common.h defines."""


class Unit(NamedTuple):
    """The source of one library: a C++ file, for one dtype."""

    file: str
    """Below `kernels/`, or the whole path of a plug-in's."""
    real: str
    """A key of REALS."""

    def name(self) -> str:
        """The start of the names of its library's files."""
        return f"{Path(self.file).stem}-{self.real}"

    def __str__(self) -> str:
        return f"{self.file} for {self.real}"


class Record(NamedTuple):
    """The origin of a library and its needs; a file beside it holds this as JSON."""

    source: str
    """`digest` of the unit."""
    march: str
    flags: str
    compiler: str
    platform: str
    needs: list[str]
    vector_bits: int
    cpu: str
    """`cpu_digest` of the machine that compiled it."""
    sha256: str
    """The digest of the library's file."""


class Stored(NamedTuple):
    """A library in the folder."""

    path: Path
    record: Record


_outside = set[str]()


def count_in(file: str) -> None:
    """Count a file among `sources()`; those that plug-ins bring have a whole path."""
    if source.is_outside(file):
        _outside.add(file)


def sources() -> list[str]:
    """The C++ files of all kernels, relative to `kernels/`, then those of the plug-ins that are loaded, whole paths."""
    own = [path.relative_to(source.FOLDER).as_posix() for path in source.FOLDER.rglob("*.cpp")]
    return [*sorted([*own, *source.variants()]), *sorted(_outside)]


def units() -> list[Unit]:
    """A unit for each of these files and each dtype."""
    return [Unit(file, real) for file in sources() for real in REALS]


def folder() -> Path:
    """The folder of compiled kernels: DUOLN_KERNELS, else a folder of the cache.

    Raises:
        KernelError, DataMissingError: there is none, because the working folder, or the home folder, is not there.
    """
    asked = os.environ.get("DUOLN_KERNELS")
    return _absolute(asked) if asked else cache_folder() / "native"


@cache
def _absolute(path: str) -> Path:
    """A path as it was when it was first asked for: a program may change its folder."""
    try:
        return Path(os.path.abspath(in_home(path)))
    except OSError as error:
        raise KernelError(f"DUOLN_KERNELS={path}: expected a folder, found that the working folder is gone") from error


@cache
def folder_refusal(path: Path) -> str | None:
    """Why compiled kernels cannot be kept in a folder, if they cannot; makes it where it is not there."""
    try:
        if not path.is_dir():
            make_folder(path.parent)
            path.mkdir(exist_ok=True, mode=0o700)
        facts = path.stat()
    except (OSError, CheckpointError) as error:
        return f"{path} cannot be made: {getattr(error, 'strerror', None) or error}"
    if not os.access(path, os.R_OK | os.X_OK):
        return f"{path} cannot be read"
    return _ownership_refusal(path, facts)


def can_write(path: Path) -> bool:
    """True if libraries can be put into a folder."""
    return os.access(path, os.W_OK | os.X_OK)


def digest(unit: Unit) -> str:
    """A digest of what decides the code of a unit, besides compiler and CPU."""
    return _hash(source.text(unit.file), *toolchain.FLAGS, REALS[unit.real])


def cpu_digest() -> str:
    """The CPU of this machine."""
    return _hash(processor.identity())


def library_path(unit: Unit, chosen: Compiler, march: str, where: Path) -> Path:
    """The path of a unit's library; `march` "native" stands for the CPU of this machine."""
    cpu = cpu_digest() if march == NATIVE else ""
    return where / f"{unit.name()}-{_hash(digest(unit), march, *chosen.command, chosen.version, cpu)}.so"


def load(unit: Unit, path: Path) -> ctypes.CDLL:
    """Load the library of a unit, which has the functions that the unit's text defines.

    Raises:
        OSError: the system does not load it, or it lacks one: a compiler may hide them, or leave them out.
    """
    loaded, text = ctypes.CDLL(str(path)), source.text(unit.file)
    names = [f"{name}_{unit.real}" for name in _ENTRY.findall(text)]
    for name in [*names, *([_OF_HEADER] if _OF_HEADER in text else [])]:
        find(loaded, name)
    return loaded


def find(library: ctypes.CDLL, name: str) -> Any:
    """A function of a library. Raises OSError if it lacks it."""
    function = getattr(library, name, None)
    if function is None:
        raise OSError(f"{library._name} lacks the function {name}")
    return function


def record_path(library: Path) -> Path:
    """The record of a library."""
    return library.with_suffix(".json")


def usable_library(unit: Unit, chosen: Compiler | None) -> Stored | str:
    """The library of a unit that this machine takes, or the reason why there is none.

    The first choice is what this machine's own compiler made for its CPU. Then comes what was made ahead, the one with
    the widest vectors. What some compiler made for its own machine comes in only where there is no compiler here.

    Raises:
        OSError: the folder or the first choice cannot be read.
    """
    where = folder()
    if chosen is not None:
        exact = library_path(unit, chosen, NATIVE, where)
        if exact.is_file():
            return Stored(exact, _read(exact))
    reasons, usable, stale = [], [], False
    for path in sorted(where.glob(f"{unit.name()}-*.so")):
        try:
            record = _read(path)
        except OSError as error:
            reasons.append(str(error))
            continue
        if record.source != digest(unit):
            stale = True
        elif record.march != NATIVE or chosen is None:
            problem = _record_refusal(path, record)
            reasons += [problem] if problem else []
            usable += [] if problem else [Stored(path, record)]
    if usable:
        return max(usable, key=lambda each: each.record.vector_bits)
    if reasons:
        return "; ".join(reasons)
    return f"{where} has it compiled from the text of another version of duoln" if stale else not_compiled_text()


def not_compiled_text() -> str:
    """The words for a kernel that nobody has compiled."""
    return f"{folder()} does not have it"


def is_whole(library: Path) -> bool:
    """True if a library and its record are there, this user's alone, and fit each other."""
    try:
        check_library(Stored(library, _read(library)))
    except OSError:
        return False
    return True


def _record_refusal(path: Path, record: Record) -> str | None:
    """Why this machine cannot run a library; None where it can."""
    if record.platform != processor.own_platform():
        return f"{path} is compiled for {record.platform}, and this machine is {processor.own_platform()}"
    lacking = processor.lacking(record.needs)
    if lacking is None:
        alike = record.march == NATIVE and record.cpu == cpu_digest()
        return None if alike else f"{path}: this system does not say whether its CPU has what {record.march} needs"
    return f"{path} is compiled for {record.march}; this CPU lacks {', '.join(lacking)}" if lacking else None


def check_library(each: Stored) -> None:
    """Check that a library is what was compiled; to load half of one would end the process.

    Raises:
        OSError: it is not a file of this user alone, or its bits have changed.
    """
    _check_owned(each.path)
    if file_digest(each.path) != each.record.sha256:
        raise OSError(f"{each.path} is not what was compiled")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_writable(path: Path) -> None:
    """Check that libraries can be put into a folder.

    Raises:
        KernelError: they cannot.
    """
    problem = folder_refusal(path)
    if problem is None and not can_write(path):
        problem = f"{path} cannot be written"
    if problem:
        raise KernelError(f"[compile] expected a folder of your own for the libraries, found that {problem}")


def _read(library: Path) -> Record:
    """The record of a library.

    Raises:
        OSError: it cannot be read, others can write it, or it is no record.
    """
    path = record_path(library)
    _check_owned(path)
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        record = Record(**values)
    except (ValueError, TypeError, RecursionError) as error:
        raise OSError(f"{path} is no record of a library: {error}") from error
    kinds = {name: type(value) for name, value in record._asdict().items()}
    if kinds != {name: {"needs": list, "vector_bits": int}.get(name, str) for name in Record._fields} or not all(
            isinstance(name, str) for name in record.needs):
        raise OSError(f"{path} is no record of a library: its values are of other types")
    return record


def _check_owned(path: Path) -> None:
    facts = path.lstat()
    problem = _ownership_refusal(path, facts) if stat.S_ISREG(facts.st_mode) else f"{path} is no regular file"
    if problem:
        raise OSError(problem)


def _ownership_refusal(path: Path, facts: os.stat_result) -> str | None:
    """Why a file or folder is not this user's, or root's, alone."""
    if hasattr(os, "getuid") and facts.st_uid not in (os.getuid(), toolchain.ROOT):
        return f"{path} belongs to another user"
    if facts.st_mode & _OTHERS_MAY_WRITE:
        return f"{path} can be written by others; make it yours alone with chmod go-w"
    return None


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
