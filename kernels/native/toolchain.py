"""The C++ compiler of this machine: where it is, its flags, and what code for a CPU needs of that CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from duoln.errors import KernelError, UsageError
from duoln.kernels.native import processor

COMPILERS = ("c++", "g++", "clang++")
ZIG = "ziglang"
"""The package that brings Clang, for machines where one may not install a compiler."""
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=fast", "-fopenmp-simd")
"""The flags of every kernel, beside that of its CPU."""
NATIVE = "native"
"""The name of this machine's own CPU."""
_ASKED = "DUOLN_CXX"
_SECONDS = 20
ROOT = 0
"""The number of the user root."""
_INSTALLERS = (("apt-get", "apt install g++"), ("dnf", "dnf install gcc-c++"), ("apk", "apk add g++"),
               ("pacman", "pacman -S gcc"), ("zypper", "zypper install gcc-c++"))


class Compiler(NamedTuple):
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    """The program, and what stands before all flags, such as "zig", "c++" or "ccache", "g++"."""
    version: str
    """The first line that it gives of itself."""


class Target(NamedTuple):
    """The properties of a compiler's code for a CPU."""

    platform: str
    """System and architecture, such as "linux x86_64"."""
    needs: list[str]
    """The instruction sets that the CPU must have, see `processor`."""
    vector_bits: int
    """The widest vectors that the code may use; 0 where the CPU decides it while it runs."""


@cache
def compiler() -> Compiler | None:
    """The compiler: DUOLN_CXX, else the first of COMPILERS on the PATH that answers, else that of the package ZIG.

    None where none of them answers. DUOLN_CXX is a program, or a line such as "ccache g++"; it must compile for this
    machine.
    """
    answered = _first_compiler()
    return None if answered is None or (os.environ.get(_ASKED) and refusal(answered)) else answered


@cache
def _first_compiler() -> Compiler | None:
    for program, *words in _candidates():
        path = shutil.which(program)
        if path is None:
            continue
        command = (path, *words)
        done = _answer([*command, "--version"])
        if not isinstance(done, Exception) and done.returncode == 0 and done.stdout.strip():
            return Compiler(command, done.stdout.splitlines()[0])
    return None


@cache
def refusal(answered: Compiler) -> str | None:
    """Why a program that answers cannot compile for this machine; None if it can."""
    try:
        made = target(answered, NATIVE).platform
    except KernelError as error:
        return str(error)
    except UsageError as error:
        return "it says " + (str(error).splitlines()[1:] or ["nothing"])[0]
    return None if made == processor.own_platform() else f"it compiles for {made}, not for {processor.own_platform()}"


def _candidates() -> Iterator[list[str]]:
    asked = os.environ.get(_ASKED)
    if asked:
        yield [asked] if shutil.which(asked) else asked.split() or [asked]
        return
    yield from ([name] for name in COMPILERS)
    package = find_spec(ZIG)
    if package is not None and package.origin is not None:
        yield [str(Path(package.origin).with_name("zig")), "c++"]


def missing() -> str:
    """Why there is no compiler, in words."""
    asked, answered = os.environ.get(_ASKED), _first_compiler()
    if not asked:
        silent = "" if find_spec(ZIG) is None else f", and that of the package {ZIG} does not answer"
        return f"no C++ compiler of {', '.join(COMPILERS)} is on the PATH{silent}"
    return f"{_ASKED}={asked} is no compiler " + ("that answers" if answered is None else
                                                  f"for this machine: {refusal(answered)}")


def install_line() -> str:
    """The line to type for a compiler."""
    if os.environ.get(_ASKED):
        return f"unset {_ASKED}"
    if sys.platform == "darwin":
        return "xcode-select --install"
    if os.environ.get("CONDA_PREFIX"):
        return "conda install cxx-compiler"
    if os.geteuid() != ROOT and shutil.which("sudo") is None:
        return f"pip install {ZIG}"
    return next((line for program, line in _INSTALLERS if shutil.which(program)), _INSTALLERS[0][1])


def flags_for(chosen: Compiler, march: str) -> tuple[str, ...]:
    """All flags of a compiler for the CPU of that name, a value of the -march of GCC."""
    return *FLAGS, *_cpu_flags(chosen, march)


def _cpu_flags(chosen: Compiler, march: str) -> tuple[str, ...]:
    if march == NATIVE:
        return _native_flags(chosen)
    is_zig = any(Path(word).name in {"zig", ZIG} for word in chosen.command)
    return (f"-march={march.replace('-', '_') if is_zig else march}",)  # Zig's names have "_" for "-"


@cache
def _native_flags(chosen: Compiler) -> tuple[str, ...]:
    """The flag of this machine's own CPU: -march=native, or -mcpu=native (GCC for PowerPC, older Clang for ARM).

    It is nothing where a compiler takes neither. Its code runs on any CPU of the kind then.
    """
    usual = (f"-march={NATIVE}",)
    for flags in (usual, (f"-mcpu={NATIVE}",), ()):
        done = _macros(chosen, flags)
        if isinstance(done, Exception):
            break
        if done.returncode == 0:
            return flags
    return usual


@cache
def target(chosen: Compiler, march: str) -> Target:
    """The properties of the compiler's code for the CPU of that name, from its macros.

    Raises:
        UsageError: the compiler knows no such CPU; its words are in the message.
        KernelError: it does not answer.
    """
    done = _macros(chosen, _cpu_flags(chosen, march))
    if isinstance(done, Exception):
        raise KernelError(f"[compile] expected an answer of {' '.join(chosen.command)}, found {done}") from done
    if done.returncode:
        raise UsageError(f"[compile] expected a CPU that {chosen.version} knows, found -march={march}; it says\n"
                         f"{done.stderr.strip() or done.stdout.strip()}")
    macros = dict(line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if len(line.split()) > 2)
    return Target(processor.platform_of(macros), processor.needs_of(macros), processor.vector_bits_of(macros))


@cache
def _macros(chosen: Compiler, flags: tuple[str, ...]) -> subprocess.CompletedProcess[str] | Exception:
    """The compiler's answer when it is asked for its macros with these flags for a CPU."""
    return _answer([*chosen.command, *FLAGS, *flags, "-dM", "-E", "-x", "c++", os.devnull])


def _answer(command: Sequence[str]) -> subprocess.CompletedProcess[str] | Exception:
    """The result of a program, or the error that kept it from answering."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8",
                              errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return error
