"""Whose fault it was: whatever a task's own code raises becomes one error that names the task and the method."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from duoln import errors
from duoln.errors import DuolnError, TaskError, words_of
from duoln.tasks.attributes import check_attributes
from duoln.tasks.results import checked, checked_batch
from duoln.tasks.task import Task
from duoln.tasks.values import Splits

METHODS = tuple(name for name, value in vars(Task).items() if inspect.isfunction(value) and not name.startswith("_"))
"""What duoln calls of a task: all that the contract has."""


class _Author(NamedTuple):
    """Who answers for a call."""

    task: str
    owner: str
    file: str
    """Where the task is written; empty if it was made in an interpreter."""


def named(task: Task, owner: str) -> Task:
    """The same task, whose methods raise a `TaskError` where its code fails or gives what the contract does not have.

    So do the batches, the model's start and the optimiser that it gives. Errors with an exit code of their own, such as
    missing data, pass as they are: they say what the user can do.

    Args:
        task: the task.
        owner: the distribution that brings it.

    Raises:
        PluginError: its attributes are not a task's.
        TaskError: it cannot be copied.
    """
    check_attributes(task)
    author = _Author(task.name, owner, _file_of(task))
    result = _call(author, "copy", copy.copy, task)
    vars(result)["owner"] = owner
    for method in METHODS:
        vars(result)[method] = _named(_call(author, method, getattr, task, method), method, author)
    return result


def _named(call: Callable[..., Any], where: str, author: _Author) -> Callable[..., Any]:
    """A method of a task whose failures are named, and whose results are what the contract says."""
    complete = _COMPLETE.get(where)

    def run(*args: Any, **kwargs: Any) -> Any:
        result = _call(author, where, lambda: checked(where, call(*args, **kwargs)))
        return complete(result, author) if complete else result

    return run


def _complete_data(splits: Splits, author: _Author) -> Splits:
    def train(step: int) -> Any:
        return _call(author, "data", lambda: checked_batch(splits.train(step)))

    return dataclasses.replace(splits, train=train)


def _complete_peer(build: Callable[..., Any], author: _Author) -> Callable[..., Any]:
    return lambda *args: _call(author, "peer", build, *args)


def _completing(where: str, *methods: str) -> Callable[[Any, _Author], Any]:
    """For an object that a method of the task gives: a copy whose own methods are named too."""
    def complete(given: Any, author: _Author) -> Any:
        result = _call(author, where, copy.copy, given)
        for method in methods:
            bound = _call(author, where, getattr, given, method)
            vars(result)[method] = _bound(bound, author, where)
        return result

    return complete


def _bound(call: Callable[..., Any], author: _Author, where: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: _call(author, where, call, *args, **kwargs)


_COMPLETE: dict[str, Callable[[Any, _Author], Any]] = {
    "data": _complete_data, "peer": _complete_peer, "model": _completing("model", "init"),
    "optimizer": _completing("optimizer", "rate_at", "init", "update")}


def _call(author: _Author, where: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call of the task's code gives; the working folder is the same afterwards."""
    with staying():
        try:
            return call(*args, **kwargs)
        except (TaskError, MemoryError, KeyboardInterrupt):  # already named; not the task's fault; the user's wish
            raise
        except BaseException as error:  # sys.exit too: it would end a run that is not done, with exit code 0
            if _says_what_to_do(error):
                raise
            text = words_of(error).splitlines()
            raise TaskError(f"task '{author.task}' of {author.owner}: {where} raised {type(error).__name__}: "
                            f"{text[0] if text else 'no message'} ({_place(error, author.file)}); "
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


def _place(error: BaseException, own: str) -> str:
    """The innermost line of the task's own file on the way to an error, else the innermost line."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    return f"{frame.filename}:{frame.lineno}"


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """The working folder afterwards is the one before: relative paths of the user are of that one."""
    here = _folder()
    try:
        yield
    finally:
        if here is not None and _folder() != here:
            os.chdir(here)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextlib.contextmanager
def hearing_interrupts() -> Iterator[list[int]]:
    """The interrupts that arrive meanwhile: code that raises KeyboardInterrupt of itself does not speak for the user.

    Outside the main thread nobody can tell, and each is taken for the user's.
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
    """Why a plug-in is not used, in one line."""
    text = [line.strip() for line in words_of(error).splitlines() if line.strip()]
    # The first line of pluggy's own error does not say what is wrong.
    lines = text if type(error).__name__ == "PluginValidationError" else text[:1]
    return f"{type(error).__name__}: {'; '.join(lines) or 'no message'}"


