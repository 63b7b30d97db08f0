"""Compiles kernels: side by side, once for all processes, built aside and moved into place.

A process that is killed, or a full disk, leaves no half library.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any, NamedTuple

from duoln.errors import KernelError
from duoln.kernels import host, source
from duoln.kernels.native import storage, toolchain
from duoln.kernels.native.storage import REALS, Record, Unit
from duoln.kernels.native.toolchain import Compiler
from duoln.system import filesystem
from duoln.system.stopping import defer_signals
from duoln.system.visible import say

_SECONDS = 300.0
_SLOW_SECONDS = 5.0
_POLL_SECONDS = 0.01
_SHOWN_LINES = 20
_ASIDE = "building-"
_PRIVATE, _SHARED = 0o600, 0o644
_TRIAL = """#include <new>
extern "C" int duoln_trial(int n) {
    if (n < 0) throw std::bad_alloc();
    return n;
}
"""
"""Needs an assembler, a linker and the library of C++. Its function is called as those of kernels are."""
_ANSWER = 31

Ended = Callable[[Unit, str | None], None]
"""A function that gets a unit that is in place, or the log of one that does not compile."""
Stopped = Callable[[], bool]
"""A function that says whether no more is wanted."""


class Plan(NamedTuple):
    """The compiler, CPU and folder of a build."""

    compiler: Compiler
    march: str
    folder: Path
    mode: int
    """The permissions of the files."""


_held = set[int]()
"""The descriptors of the locks that this process holds."""


def _let_go_in_child() -> None:
    """A forked child has none of the threads that hold a lock, and shall not keep it when they have ended."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class _NotStartedError(OSError):
    """A compiler that cannot be started; the message says why."""


class _UnusableError(Exception):
    """A library that a compiler has made and this machine cannot use; the message says why."""


class Running(NamedTuple):
    """A compiler at work on one unit."""

    unit: Unit
    built: Path
    log: Path
    """The file of its output."""
    process: Popen[bytes]
    deadline: float


def build(units: list[Unit], chosen: Compiler, ended: Ended | None = None, stopped: Stopped = lambda: False,
          ) -> dict[Unit, str]:
    """Compile units for this machine's CPU, those that are missing; the logs of those that do not compile.

    Args:
        units: those that wait, the first to be started first. The list is emptied, and more may come while it is.
        chosen: the compiler.
        ended: `ended(unit, log)` is called as soon as a unit is in place, with None, or as soon as it does not compile.
        stopped: true once no more is wanted; the compilers are ended then.

    Raises:
        OSError: the folder cannot be written.
    """
    return _build(units, Plan(chosen, toolchain.NATIVE, storage.folder(), _PRIVATE), ended, stopped)


def compile_ahead(march: str, out: Path | None = None) -> dict[str, Any]:
    """Compile every kernel for a CPU, the -march of which is named, into a folder that any user may read.

    Args:
        march: a value of the compiler's -march; "native" is this machine's CPU.
        out: the folder; by default where this machine keeps its own, for its user alone.

    Raises:
        UsageError: the compiler knows no such CPU.
        KernelError: there is no compiler, the folder cannot be written, or a kernel does not compile.
    """
    chosen = toolchain.compiler()
    if sys.platform == "win32":
        raise KernelError("[compile] kernels are not compiled on Windows")
    if chosen is None:
        raise KernelError(f"[compile] expected a C++ compiler, found that {toolchain.missing()}; "
                          f"try: {toolchain.install_line()}")
    target = toolchain.target(chosen, march)
    plan = Plan(chosen, march, out or storage.folder(), _SHARED if out else _PRIVATE)
    try:
        if out is not None:
            _make_for_all(out)
        storage.check_writable(plan.folder)
        kept = [unit for unit in storage.units() if storage.is_whole(_path(unit, plan))]
        logs = _build(longest_first(storage.units()), plan)
    except OSError as error:
        raise KernelError(f"[compile] expected a folder for the libraries, found that {plan.folder} cannot be written: "
                          f"{error.strerror or error}") from error
    if logs:
        raise KernelError("\n".join(f"[compile] {unit} does not compile:\n{_beginning(log)}"
                                    for unit, log in logs.items()))
    return {"folder": str(plan.folder), "march": march, "compiler": chosen.version,
            "flags": " ".join(toolchain.flags_for(chosen, march)), **target._asdict(),
            "libraries": [{"file": unit.file, "dtype": unit.real, "name": _path(unit, plan).name,
                           "new": unit not in kept} for unit in storage.units()]}


def _make_for_all(folder: Path) -> None:
    """Make a folder that every user may read, and those above it that are not there."""
    for each in filesystem.missing_folders(folder):
        each.mkdir()
        each.chmod(0o755)


@cache
def trial(chosen: Compiler) -> str | None:
    """Why nothing that a compiler makes in the folder can be loaded; None if it can.

    A program that answers may lack its assembler, or compile C alone, and a folder may be one where nothing runs. Zig
    takes some 40 s at its very first use.
    """
    command = [*chosen.command, *toolchain.flags_for(chosen, toolchain.NATIVE)]
    try:
        with _lock_folder(storage.folder()), tempfile.TemporaryDirectory(dir=storage.folder(), prefix=_ASIDE) as aside:
            running = _start(Unit("trial.cpp", ""), _TRIAL, command, Path(aside, "trial"))
            try:
                _wait(running, chosen.version)
            finally:
                _end(running.process)
            if running.process.returncode:
                words = running.log.read_text(encoding="utf-8", errors="replace").strip()
                return f"it says {(words.splitlines() or ['nothing'])[0]}"
            if not running.built.is_file():
                return "it makes no file"
            answer = storage.find(ctypes.CDLL(str(running.built)), "duoln_trial")(_ANSWER)
            return None if answer == _ANSWER else f"its code gives {answer} in the place of {_ANSWER}"
    except OSError as error:
        return str(error)


def _wait(running: Running, name: str) -> None:
    """Wait until a compiler ends; a line says that it takes long."""
    told_at = time.monotonic() + _SLOW_SECONDS
    while not _has_ended(running):
        if time.monotonic() > told_at:
            say(f"waiting for {name}")
            told_at = running.deadline
        time.sleep(_POLL_SECONDS)


def _build(units: list[Unit], plan: Plan, ended: Ended | None = None, stopped: Stopped = lambda: False,
           ) -> dict[Unit, str]:
    logs = dict[Unit, str]()

    def note(unit: Unit, log: str | None) -> None:
        if log is not None:
            logs[unit] = log
        if ended is not None:
            ended(unit, log)

    with _lock_folder(plan.folder, stopped):
        for left in plan.folder.glob(f"{_ASIDE}*"):  # by a process that was killed; nobody else is at work here now
            shutil.rmtree(left)
        announce([unit for unit in list(units) if not storage.is_whole(_path(unit, plan))], plan.compiler, plan.march)
        aside = Path(tempfile.mkdtemp(dir=plan.folder, prefix=_ASIDE))
        try:
            with defer_signals() as request:
                _compile(units, plan, aside, note, lambda: stopped() or request.number is not None)
        finally:
            shutil.rmtree(aside)  # no finalizer does so, which a child that was forked meanwhile would run, too
    return logs


def announce(units: Sequence[Unit], chosen: Compiler, march: str = toolchain.NATIVE) -> None:
    """Say that units are compiled, if there are any."""
    if units:
        names = ", ".join(dict.fromkeys(Path(unit.file).stem for unit in units))
        reals = " and ".join(dict.fromkeys(unit.real for unit in units))
        say(f"compiling {names} in {reals} for {'this CPU' if march == toolchain.NATIVE else march} with "
            f"{chosen.version}; this is done once")


def _path(unit: Unit, plan: Plan) -> Path:
    return storage.library_path(unit, plan.compiler, plan.march, plan.folder)


def _wait_for(lock: int, stopped: Stopped) -> None:
    """Wait until a process lets the lock go, as it does when it ends or is killed.

    Raises:
        InterruptedError: no more is wanted.
    """
    while not stopped():
        with suppress(BlockingIOError):
            filesystem.lock(lock)
            return
        time.sleep(_POLL_SECONDS)
    raise InterruptedError("stopped while another process compiles")


def longest_first(units: Iterable[Unit]) -> list[Unit]:
    """The order in which no core waits at the end for a long text that began late."""
    return sorted(units, key=lambda unit: len(source.text(unit.file)), reverse=True)


@contextmanager
def _lock_folder(folder: Path, stopped: Stopped = lambda: False) -> Iterator[None]:
    """While no other process compiles into the folder: it would compile the same."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, _PRIVATE)  # nobody else may open it, and hold it
    _held.add(lock)
    try:
        try:
            filesystem.lock(lock)
        except BlockingIOError:
            say(f"waiting for a process that compiles into {folder}")
            _wait_for(lock, stopped)
        yield
    finally:
        if lock in _held:  # a forked child has closed it
            filesystem.unlock(lock)  # a child that Python does not know of may have it open
            _held.remove(lock)
            os.close(lock)


def _compile(waiting: list[Unit], plan: Plan, aside: Path, ended: Ended, stopped: Stopped) -> None:
    """Compile as many side by side as there are cores. A signal ends it by `stopped`: raised at once, it could come
    between the start of a compiler and the note of it.
    """
    running, number = list[Running](), 0
    try:
        while (waiting or running) and not stopped():
            while waiting and len(running) < host.workers():
                unit, number = waiting.pop(0), number + 1
                if storage.is_whole(_path(unit, plan)):
                    ended(unit, None)
                    continue
                try:
                    running.append(_start(unit, _text(unit), _command(unit, plan), aside / f"{number}-{unit.name()}"))
                except _NotStartedError as error:
                    ended(unit, f"{_line_to_type(unit, plan)}\n{error}")
            done = next((each for each in running if _has_ended(each)), None)
            if done is None:
                time.sleep(_POLL_SECONDS if running else 0)
                continue
            running.remove(done)
            ended(done.unit, _install_library(done, plan))
    finally:  # after a signal or a full disk no compiler stays behind
        for each in running:
            _end(each.process)


def _install_library(done: Running, plan: Plan) -> str | None:
    """None once a library is in place; else the reason why there is none, with the line to type."""
    try:
        if done.process.returncode == 0 and done.built.is_file():
            _keep(done, plan)
            return None
        problem = done.log.read_text(encoding="utf-8", errors="replace")
    except _UnusableError as error:
        problem = str(error)
    return f"{_line_to_type(done.unit, plan)}\n{problem}"


def _start(unit: Unit, text: str, command: Sequence[str], aside: Path) -> Running:
    """Start the compiler on a text, whose files begin with the name of `aside`. Its own files go there, too: the
    system's folder for them may be full.
    """
    source_file, built, log = (aside.with_name(f"{aside.name}{ending}") for ending in (".cpp", ".so", ".log"))
    source_file.write_text(text, encoding="utf-8")
    with log.open("w", encoding="utf-8") as output:
        try:
            process = Popen([*command, str(source_file), "-o", str(built)], stdin=DEVNULL, stdout=output, stderr=STDOUT,
                            start_new_session=True, env={**os.environ, "TMPDIR": str(aside.parent)})
        except OSError as error:
            raise _NotStartedError(str(error)) from error
    return Running(unit, built, log, process, time.monotonic() + _SECONDS)


def _text(unit: Unit) -> str:
    """Headers are pasted in, each once, and a compiler warns of the pragma outside of a header."""
    return source.text(unit.file).replace("#pragma once\n", "\n")


def _command(unit: Unit, plan: Plan) -> list[str]:
    return [*plan.compiler.command, *toolchain.flags_for(plan.compiler, plan.march), REALS[unit.real]]


def _line_to_type(unit: Unit, plan: Plan) -> str:
    """A line for a terminal that does the same; the text is left beside the libraries for it."""
    text = plan.folder / f"{unit.name()}.cpp"
    text.write_text(_text(unit), encoding="utf-8")
    return shlex.join([*_command(unit, plan), str(text), "-o", f"{unit.name()}.so"])


def _has_ended(running: Running) -> bool:
    """True if a compiler has ended; one that takes too long is ended, and its log says so."""
    if running.process.poll() is None and time.monotonic() > running.deadline:
        _end(running.process)
        with running.log.open("a", encoding="utf-8") as output:
            output.write(f"stopped after {_SECONDS:.0f} s\n")
    return running.process.poll() is not None


def _end(process: Popen[Any]) -> None:
    """End a compiler and the programs that it has started, which are the group of its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _keep(running: Running, plan: Plan) -> None:
    """Move a library and its record into place, the record first: a library counts as soon as it is there.

    Raises:
        _UnusableError: it is for this machine, which does not load it, or it lacks a function.
    """
    if plan.march == toolchain.NATIVE:
        try:
            storage.load(running.unit, running.built)
        except OSError as error:
            raise _UnusableError(str(error)) from error
    target, path = toolchain.target(plan.compiler, plan.march), _path(running.unit, plan)
    record = Record(storage.digest(running.unit), plan.march, " ".join(toolchain.flags_for(plan.compiler, plan.march)),
                    plan.compiler.version, target.platform, target.needs, target.vector_bits, storage.cpu_digest(),
                    storage.file_digest(running.built))
    written = storage.record_path(running.built)
    written.write_text(json.dumps(record._asdict(), indent=1) + "\n", encoding="utf-8")
    for made in (written, running.built):
        made.chmod(plan.mode)
    written.replace(storage.record_path(path))
    running.built.replace(path)


def tell(unit: Unit, log: str) -> None:
    """Say that a kernel does not compile, with its command and the beginning of the compiler's words."""
    say(f"{unit} does not compile, NumPy's rule runs instead\n  {_beginning(log)}")


def _beginning(log: str) -> str:
    """The first lines of a log: a template's errors fill thousands, and the first one is the cause."""
    lines = log.rstrip().splitlines()
    more = len(lines) - _SHOWN_LINES
    return "\n".join(lines[:_SHOWN_LINES]) + (f"\n(and {more} more lines)" if more > 0 else "")
