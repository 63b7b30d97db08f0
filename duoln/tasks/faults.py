"""Whose fault it was: an exception from a task's own code becomes one error that names the task and the method."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from duoln.errors import DuolnError, TaskError
from duoln.tasks.spec import Splits, Task

METHODS = ("data", "model", "optimizer", "loss", "population", "predict", "metrics", "sample", "prepare", "peer")
"""What duoln calls of a task."""


def named(task: Task, owner: str) -> Task:
    """The same task, whose methods raise a `TaskError` where its code fails; so does the data that it gives.

    Errors with an exit code of their own, such as missing data, pass as they are: they say what the user can do.

    Args:
        task: the task.
        owner: the distribution that brings it.
    """
    result = copy.copy(task)
    for method in METHODS:
        setattr(result, method, _named(getattr(task, method), method, task, owner))
    given = result.data

    @functools.wraps(given)
    def data(*args: Any, **kwargs: Any) -> Splits:
        splits = given(*args, **kwargs)
        return dataclasses.replace(splits, train=_named(splits.train, "data", task, owner))

    setattr(result, "data", data)  # noqa: B010 - a method is replaced, on this one object
    return result


def _named(call: Callable[..., Any], where: str, task: Task, owner: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (TaskError, MemoryError):  # already named; not the task's fault
            raise
        except Exception as error:
            if isinstance(error, DuolnError) and error.exit_code != DuolnError.exit_code:
                raise
            text = str(error).strip().splitlines()
            raise TaskError(f"task '{task.name}' of {owner}: {where} raised {type(error).__name__}: "
                            f"{text[0] if text else 'no message'} ({_place(error, task)}); "
                            "DUOLN_TRACEBACK=1 shows the whole way there") from error

    return run


def _place(error: BaseException, task: Task) -> str:
    """The innermost line of the task's own file on the way to an error, else the innermost line."""
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = inspect.getfile(type(task))
    except (TypeError, OSError):  # made in an interpreter
        own = ""
    frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    return f"{frame.filename}:{frame.lineno}"
