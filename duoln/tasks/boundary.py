"""The boundary between duoln and a plug-in's code: failures are named, results checked, the working folder restored.

A failure of a task's own code becomes one error that names the task, the method and the line. A listener can neither
change the run that it hears of nor, if it is a plug-in's, end it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from duoln import errors
from duoln.errors import DuolnError, PluginError, TaskError, words_of
from duoln.tasks.contract import RESULTS, ContractError, accept_any, check_attributes, checked_batch
from duoln.tasks.events import Listener
from duoln.tasks.task import Task

METHODS, EVENTS = (tuple(name for name, value in vars(kind).items()
                         if inspect.isfunction(value) and not name.startswith("_")) for kind in (Task, Listener))
"""All methods of the contract that duoln calls, and all of a listener."""

_OF_RESULTS = {"model": ("init",), "optimizer": ("rate_at", "init", "update")}
"""For a method that gives an object of the author's: the methods of the object that duoln calls."""


def guard_task(task: Task, owner: str) -> Task:
    """A copy of a task whose methods raise a `TaskError` if the task's code fails or its result breaks the contract.

    The same is true of its batches, of the initialisation of its model and of its optimizer. The author's code runs on
    the author's own object. Errors with an exit code of their own, such as missing data, are not changed, because they
    tell the user what to do.

    Args:
        task: the task.
        owner: the distribution that brings it.

    Raises:
        PluginError: its attributes are not a task's.
        TaskError: it cannot be copied.
    """
    check_attributes(task)
    author = _Author(task.name, owner, _file_of(task))
    result: Task = author.call("copy", accept_any, copy.copy, task)
    vars(result)["owner"] = owner
    for method in METHODS:
        vars(result)[method] = partial(author.method, method, author.call(method, accept_any, getattr, task, method))
    return result


class _Author(NamedTuple):
    """The task and distribution whose code is called."""

    task: str
    owner: str
    file: str
    """The file of the task; empty if the task was made in an interpreter."""

    def method(self, where: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The checked result of a method of the task; failures of what it gives are named too."""
        result = self.call(where, RESULTS.get(where, accept_any), function, *args, **kwargs)
        if where == "data":
            return dataclasses.replace(result, train=partial(self.call, where, checked_batch, result.train))
        if where == "peer":
            return partial(self.call, where, accept_any, result)
        if where not in _OF_RESULTS:
            return result
        copied = self.call(where, accept_any, copy.copy, result)
        for method in _OF_RESULTS[where]:
            bound = self.call(where, accept_any, getattr, result, method)
            vars(copied)[method] = partial(self.call, where, accept_any, bound)
        return copied

    def call(self, where: str, check: Callable[[Any], Any], function: Callable[..., Any], /,
             *args: Any, **kwargs: Any) -> Any:
        """The checked result of a call of the author's code; the working folder is the same afterwards."""
        with preserve_cwd():
            try:
                return check(function(*args, **kwargs))
            except (TaskError, MemoryError, KeyboardInterrupt):  # already named; no error of the task; the user's wish
                raise
            except BaseException as error:  # also sys.exit, which would end an unfinished run with exit code 0
                if _says_what_to_do(error):
                    raise
                text = (words_of(error).splitlines() or ["no message"])[0]
                problem = f": {text}" if isinstance(error, ContractError) else f" raised {type(error).__name__}: {text}"
                raise TaskError(f"task '{self.task}' of {self.owner}: {where}{problem} "
                                f"({_place(error, self.file, function)}); "
                                "DUOLN_TRACEBACK=1 shows the whole way there") from error


def _says_what_to_do(error: BaseException) -> bool:
    """True for an error of one of duoln's own classes, with an exit code of its own."""
    own = getattr(errors, type(error).__name__, None) is type(error)
    return own and isinstance(error, DuolnError) and type(error).exit_code != DuolnError.exit_code


def _file_of(task: Task) -> str:
    try:
        return inspect.getfile(type(task))
    except (TypeError, OSError):  # made in an interpreter
        return ""


def _place(error: BaseException, own: str, function: Callable[..., Any]) -> str:
    """The innermost line of the task's own file in the traceback of an error; without one, the first line of the method
    that was called, because its result is wrong, or the innermost line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename == own]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None and code.co_filename == own:
        lines.insert(0, f"{own}:{code.co_firstlineno}")
    return lines[-1] if lines else f"{frames[-1].filename}:{frames[-1].lineno}"


def refusal(error: BaseException) -> str:
    """The reason why a plug-in is not used, in one line."""
    text = [line.strip() for line in words_of(error).splitlines() if line.strip()]
    # The first line of pluggy's own error does not say what is wrong.
    lines = text if type(error).__name__ == "PluginValidationError" else text[:1]
    return f"{type(error).__name__}: {'; '.join(lines) or 'no message'}{_line_of(error)}"


def _line_of(error: BaseException) -> str:
    """The line at which a plug-in's code failed: the innermost that is neither duoln's nor of what imports modules."""
    own = (*(str(Path(module.__file__ or "").parent) for module in (errors, importlib, pluggy)), "<")
    own = (*own, str(Path(argparse.__file__)), str(Path(dataclasses.__file__)))  # which say what is wrong in words
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    outside = [f"{file}:{line}" for file, line in frames if not file.startswith(own)]
    return f" ({outside[-1]})" if outside else ""


@contextlib.contextmanager
def preserve_cwd() -> Iterator[None]:
    """Restore the working folder after the block, because relative paths of the user refer to it."""
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


class IsolatedListener(Listener):
    """A listener that cannot change a run: it gets copies of what it may write into, and the working folder stays.

    Args:
        listener: the listener.
        source: of a plug-in's listener the plug-in and its distribution, for messages.
        say: takes one line about a failure of a plug-in's listener, which then gets no more events; the run continues.
            Without it the error of a listener ends the run.
    """

    def __init__(self, listener: Listener, source: str = "", say: Callable[[str], object] | None = None) -> None:
        self._listener, self._source, self._say = listener, source, say
        self.failed = False
        """True after an error of a plug-in's listener."""
        for event in EVENTS:  # in the place of the methods of Listener
            vars(self)[event] = partial(self._tell, event)

    def _tell(self, event: str, *values: Any) -> None:
        """Raises PluginError under DUOLN_STRICT_PLUGINS=1, where the listener of a plug-in fails."""
        if self.failed:
            return
        if event != "on_update":  # whose values are numbers alone
            values = copy.deepcopy(values)
        try:
            with preserve_cwd():
                getattr(self._listener, event)(*values)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            if self._say is None:
                raise
            self.failed = True
            problem = f"{self._source}: the listener's {event} raised {refusal(error)}"
            if os.environ.get("DUOLN_STRICT_PLUGINS") == "1":
                raise PluginError(problem) from error
            self._say(f"{problem}; it is told of nothing more")
