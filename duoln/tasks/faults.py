"""Turns each exception of a task's own code into one error that names the task and the method."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from duoln import errors
from duoln.errors import DuolnError, TaskError, words_of
from duoln.tasks.attributes import check_attributes
from duoln.tasks.results import checked, checked_batch
from duoln.tasks.task import Task
from duoln.tasks.values import Splits

METHODS = tuple(name for name, value in vars(Task).items() if inspect.isfunction(value) and not name.startswith("_"))
"""All methods of the contract that duoln calls."""


class _Author(NamedTuple):
    """The task and distribution whose code a call runs."""

    task: str
    owner: str
    file: str
    """The file of the task; empty if the task was made in an interpreter."""


def named(task: Task, owner: str) -> Task:
    """The same task; its methods raise a `TaskError` if its code fails or its result breaks the contract.

    The same is true of its batches, of the initialisation of its model and of its optimiser. Errors with an exit code
    of their own, such as missing data, are not changed, because they tell the user what to do.

    Args:
        task: the task.
        owner: the distribution that brings it.

    Raises:
        PluginError: its attributes are not a task's.
        TaskError: it cannot be copied.
    """
    check_attributes(task)
    author = _Author(task.name, owner, _file_of(task))
    result: Task = _call(author, "copy", copy.copy, task)
    vars(result)["owner"] = owner
    for method in METHODS:
        vars(result)[method] = _named(_call(author, method, getattr, task, method), method, author)
    return result


def _named(call: Callable[..., Any], where: str, author: _Author) -> Callable[..., Any]:
    """A method of a task with a named error for each failure, and with checked results."""
    return partial(_run, call, where, author)


def _run(call: Callable[..., Any], where: str, author: _Author, /, *args: Any, **kwargs: Any) -> Any:
    result = _call(author, where, wraps(call)(lambda *a, **k: checked(where, call(*a, **k))), *args, **kwargs)
    complete = _COMPLETE.get(where)
    return complete(result, author) if complete else result


def _complete_data(splits: Splits, author: _Author) -> Splits:
    return dataclasses.replace(splits, train=partial(_train, splits.train, author))


def _train(train: Callable[[int], Any], author: _Author, step: int) -> Any:
    return _call(author, "data", lambda: checked_batch(train(step)))


def _complete_peer(build: Callable[..., Any], author: _Author) -> Callable[..., Any]:
    return partial(_call, author, "peer", build)


def _completing(where: str, *methods: str) -> Callable[[Any, _Author], Any]:
    """A copy of an object that a method of the task gave; failures of its methods are named too."""
    def complete(given: Any, author: _Author) -> Any:
        result = _call(author, where, copy.copy, given)
        for method in methods:
            bound = _call(author, where, getattr, given, method)
            vars(result)[method] = partial(_call, author, where, bound)
        return result

    return complete


_COMPLETE: dict[str, Callable[[Any, _Author], Any]] = {
    "data": _complete_data, "peer": _complete_peer, "model": _completing("model", "init"),
    "optimizer": _completing("optimizer", "rate_at", "init", "update")}


def _call(author: _Author, where: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of a call of the task's code; the working folder is the same afterwards."""
    with staying():
        try:
            return call(*args, **kwargs)
        except (TaskError, MemoryError, KeyboardInterrupt):  # already named; no error of the task; the user wants it
            raise
        except BaseException as error:  # also sys.exit, which would end an unfinished run with exit code 0
            if _says_what_to_do(error):
                raise
            text = words_of(error).splitlines()
            raise TaskError(f"task '{author.task}' of {author.owner}: {where} raised {type(error).__name__}: "
                            f"{text[0] if text else 'no message'} ({_place(error, author.file, call)}); "
                            "DUOLN_TRACEBACK=1 shows the whole way there") from error


def _says_what_to_do(error: BaseException) -> bool:
    """Whether an error is one of duoln's own classes, with an exit code of its own."""
    own = getattr(errors, type(error).__name__, None) is type(error)
    return own and isinstance(error, DuolnError) and type(error).exit_code != DuolnError.exit_code


def _file_of(task: Task) -> str:
    try:
        return inspect.getfile(type(task))
    except (TypeError, OSError):  # made in an interpreter
        return ""


def _place(error: BaseException, own: str, call: Callable[..., Any]) -> str:
    """The innermost line of the task's own file in the traceback of an error; without one, the first line of the method
    that was called, because its result is wrong, or the innermost line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename == own]
    code = getattr(inspect.unwrap(call), "__code__", None)
    if code is not None and code.co_filename == own:
        lines.insert(0, f"{own}:{code.co_firstlineno}")
    return lines[-1] if lines else f"{frames[-1].filename}:{frames[-1].lineno}"


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Restore the working folder after the block, because relative paths of the user refer to it, and put back what was
    taken from the module path, because modules of ours may still have to be imported.
    """
    here, path = _folder(), list(sys.path)
    try:
        yield
    finally:
        if here is not None and _folder() != here:
            os.chdir(here)
        if sys.path != path:
            sys.path.extend([entry for entry in path if entry not in sys.path])


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextlib.contextmanager
def hearing_interrupts() -> Iterator[list[int]]:
    """Collects the interrupts during the block, because a task's code may raise KeyboardInterrupt without the user.
    Outside the main thread this cannot be known, so each counts as the user's.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield [signal.SIGINT]
        return
    heard: list[int] = []

    def note(number: int, frame: Any) -> None:
        heard.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def refusal(error: BaseException) -> str:
    """The reason why a plug-in is not used, in one line."""
    text = [line.strip() for line in words_of(error).splitlines() if line.strip()]
    # The first line of pluggy's own error does not say what is wrong.
    lines = text if type(error).__name__ == "PluginValidationError" else text[:1]
    return f"{type(error).__name__}: {'; '.join(lines) or 'no message'}{_line_of(error)}"


def _line_of(error: BaseException) -> str:
    """Where a plug-in's code failed: the innermost line that is neither duoln's nor of what imports modules."""
    own = (*(str(Path(module.__file__ or "").parent) for module in (errors, importlib, pluggy)), "<")
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    outside = [f"{file}:{line}" for file, line in frames if not file.startswith(own)]
    return f" ({outside[-1]})" if outside else ""


