"""Which compiled kernels this process has, and why it lacks the others."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from duoln.core.compiling import running_function
from duoln.errors import DuolnError, words_of
from duoln.kernels.native import background, building, foresight, storage, toolchain
from duoln.kernels.native.storage import REALS, Stored, Unit
from duoln.kernels.native.toolchain import NATIVE, Compiler
from duoln.system.visible import say

NAMES = {np.dtype(real).char: real for real in REALS}
"""The dtypes of compiled kernels by their characters: every call of an operator asks, and `dtype.name` takes 3 us."""


class Obstacle(NamedTuple):
    """Why no kernel is compiled on this machine, and what to do about it."""

    reason: str
    remedy: str
    """A line to type."""
    is_told: bool = False
    """True if a line on stderr says so when a kernel is wanted: there is a compiler, and it does not work."""


class _State:
    """The compiled kernels that one process knows of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: dict[Unit, ctypes.CDLL] = {}
        self.failures: dict[Unit, str] = {}
        """Why a unit has no library, in words."""
        self.told = False
        """True once a line on stderr has said that a library cannot be kept or loaded."""


_state = _State()


def _new_lock_in_child() -> None:
    """A forked child has none of the threads that might hold the lock."""
    _state.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_in_child)


def obstacle() -> Obstacle | None:
    """Why no kernel can be compiled or loaded on this machine; None where they can.

    Without a compiler that can compile here, or a folder that can be written, there is one only if the folder has no
    kernel for this machine.
    """
    if os.environ.get("DUOLN_NATIVE") == "0":
        return Obstacle("DUOLN_NATIVE=0 is set", "unset DUOLN_NATIVE")
    if sys.platform == "win32":
        return Obstacle("kernels are not compiled on Windows", "wsl --install")
    try:
        where = storage.folder()
    except DuolnError as error:
        return Obstacle(words_of(error), "export DUOLN_KERNELS=FOLDER")
    problem = storage.folder_refusal(where)
    if problem is not None:
        return Obstacle(problem, f"chmod go-w {where}" if "chmod" in problem else "export DUOLN_KERNELS=FOLDER")
    chosen, refused = toolchain.compiler(), []
    for unit in storage.units():
        choice = _choice(unit, chosen)
        problem = choice if isinstance(choice, str) else _load_refusal(unit, choice)
        if problem is None:
            return None
        refused += [] if problem == storage.not_compiled_text() else [problem]
    to_compiling = _obstacle_to_compiling(chosen)
    return to_compiling and to_compiling._replace(reason="; ".join([to_compiling.reason, *refused[:1]]))


def _load_refusal(unit: Unit, choice: Stored) -> str | None:
    """Why a library cannot be used; None if it can."""
    try:
        storage.load(unit, choice.path)
    except OSError as error:
        return str(error)
    return None


def _obstacle_to_compiling(chosen: Compiler | None) -> Obstacle | None:
    """Why no kernel can be compiled; None where they can."""
    if chosen is None:
        return Obstacle(toolchain.missing(), toolchain.install_line())
    if not storage.can_write(storage.folder()):
        return Obstacle(f"{storage.folder()} cannot be written", "export DUOLN_KERNELS=FOLDER")
    name = " ".join(chosen.command)
    if (problem := toolchain.refusal(chosen)) is not None:
        return Obstacle(f"{name} cannot compile for this machine: {problem}", "export DUOLN_CXX=PROGRAM", is_told=True)
    if (problem := building.trial(chosen)) is not None:
        return Obstacle(f"what {name} makes in {storage.folder()} does not run: {problem}",
                        "export DUOLN_CXX=PROGRAM DUOLN_KERNELS=FOLDER", is_told=True)
    return None


def machine_refusal() -> str | None:
    """Why no kernel is compiled on this machine; None where they are."""
    problem = obstacle()
    return None if problem is None else problem.reason


def library(file: str, dtype: np.dtype[Any]) -> ctypes.CDLL | None:
    """The library of `kernels/<file>` for a dtype, compiled if it is not there; None where that is not possible."""
    real = NAMES.get(dtype.char)
    if real is None:
        return None
    unit = Unit(file, real)
    if unit in _state.libraries:
        return _state.libraries[unit]
    with _state.lock:
        if unit not in _state.libraries and unit not in _state.failures:
            try:
                _load(unit)
            except OSError as error:
                if unit not in _state.failures:
                    _fail(unit, f"its library cannot be loaded: {error}")
    return _state.libraries.get(unit)


def _fail(unit: Unit, reason: str) -> None:
    """Note why a unit has no library. The first time a line says so; what is wrong is the same for all units."""
    _state.failures[unit] = reason
    if not _state.told:
        say(f"{unit}: {reason}; NumPy's rule runs instead")
    _state.told = True


def refusal(file: str, dtype: np.dtype[Any]) -> str | None:
    """Why `kernels/<file>` has no library for a dtype; None where it has one."""
    if (file, NAMES.get(dtype.char)) in _state.libraries:
        return None  # every call of an operator asks
    if dtype.char not in NAMES:
        return f"it is for {' and '.join(REALS)}"
    if library(file, dtype) is not None:
        return None
    return _state.failures.get(Unit(file, NAMES[dtype.char]), "it was not compiled")


def _load(unit: Unit) -> None:
    problem, chosen = obstacle(), toolchain.compiler()
    if problem is not None:
        if problem.is_told:
            _fail(unit, problem.reason)
        _state.failures[unit] = problem.reason
        return
    choice = _choice(unit, chosen)
    if isinstance(choice, str):
        to_compiling = _obstacle_to_compiling(chosen)
        choice = _compiled(unit) if to_compiling is None else f"{to_compiling.reason}, and {choice}"
    if isinstance(choice, str):
        _state.failures[unit] = choice
    else:
        _state.libraries[unit] = storage.load(unit, choice.path)


def _compiled(unit: Unit) -> Stored | str:
    """The library of a unit after it was compiled. Those that the function around will ask for are begun with it."""
    chosen, function = toolchain.compiler(), running_function()
    assert chosen is not None, "only a compiler is asked to compile"
    company = []
    if function is not None and not background.is_at_work():
        company = [each for each in _untried_units(function, unit.real, chosen) if each != unit]
    try:
        log = background.compile_and_wait(unit, company, chosen)
    except OSError as error:
        for each in (unit, *company):  # none of them is tried again in this process
            if isinstance(_choice(each, chosen), str):
                _fail(each, f"no library of it can be kept in {storage.folder()}: {error}")
        raise
    if log is None:
        return _choice(unit, chosen)
    building.tell(unit, log)
    return f"{unit} does not compile"


def foresee(function: Callable[..., Any]) -> None:
    """Begin to compile the kernels that a function will need for float32, and do not wait for them."""
    chosen = toolchain.compiler()
    if chosen is not None and obstacle() is None and _obstacle_to_compiling(chosen) is None:
        missing = _untried_units(function, "float32", chosen)
        if missing:
            background.begin(missing, chosen)


def _untried_units(function: Callable[..., Any], real: str, chosen: Compiler) -> list[Unit]:
    """The units that a function will need and this process has not tried, those that take long first."""
    units = {Unit(file, real) for file in foresight.files_of(function)}.intersection(storage.units())
    untried = units.difference(_state.libraries, _state.failures)
    return [each for each in building.longest_first(untried) if isinstance(_choice(each, chosen), str)]


def _choice(unit: Unit, chosen: Compiler | None) -> Stored | str:
    """The library of a unit that this machine takes, checked; or the reason why there is none."""
    try:
        choice = storage.usable_library(unit, chosen)
        if isinstance(choice, Stored):
            storage.check_library(choice)
    except OSError as error:
        return str(error)
    return choice


def facts() -> dict[str, Any]:
    """The facts about compiled kernels on this machine, for `duoln doctor` and the records of benchmarks."""
    problem, chosen = obstacle(), toolchain.compiler()
    if problem is not None:
        return {"rules": "interpreted", "reason": problem.reason, "remedy": problem.remedy}
    choices = {str(unit): _choice(unit, chosen) for unit in storage.units()}
    records = [choice.record for choice in choices.values() if isinstance(choice, Stored)]
    if chosen is not None and not records:
        made = toolchain.target(chosen, NATIVE)
        seen = {(chosen.version, " ".join(toolchain.flags_for(chosen, NATIVE)), made.vector_bits)}
    else:
        seen = {(record.compiler, record.flags, record.vector_bits) for record in records}
    compilers, flags, bits = (" and ".join(sorted({str(each[k]) for each in seen})) for k in range(3))
    can_compile = chosen is not None and storage.can_write(storage.folder())
    absent = {} if can_compile else {unit: choice for unit, choice in choices.items() if isinstance(choice, str)}
    absent |= {str(unit): why for unit, why in _state.failures.items()}
    return {"rules": "compiled", "compiler": compilers, "flags": flags, "vector_bits": bits,
            "folder": str(storage.folder()), "absent": absent}


def summary() -> str:
    """One line that says whether rules are compiled, and what to type for faster ones where they are not."""
    known = facts()
    if known["rules"] == "interpreted":
        return f"rules interpreted, because {known['reason']}; for faster ones: {known['remedy']}"
    absent = f", {len(known['absent'])} of them interpreted (duoln doctor says why)" if known["absent"] else ""
    return f"rules compiled by {known['compiler']} for vectors of {known['vector_bits']} bits{absent}"
