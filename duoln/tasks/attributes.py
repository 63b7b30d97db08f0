"""Checks the attributes of a task once, before the task is offered: names, tables, settings."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duoln.errors import PluginError, words_of
from duoln.tasks.kinds import is_readable, kind_in_words
from duoln.tasks.results import kind_of
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Column

NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,63}")
"""Names are typed on command lines, and folders are called after them."""
_NAME_WORDS = "1 to 64 letters, digits, '_', and inside also '-' and single '.'"

RESERVED = {
    "config": (("task", "variant", "preset", "backend", "out", "data", "resume", "listeners", "precision", "watch",
                "watch_every"), "an argument of duoln.train"),
    "sampling": (("help", "backend", "out"), "an option of `duoln sample`"),
    "evaluating": (("help", "backend", "json"), "an option of `duoln evaluate`")}
"""For each class of settings the names that its fields cannot have, and what has them."""

ALL = "all"
"""What stands for every variant on a command line."""


def check_attributes(task: Task) -> None:
    """Check the attributes of a task.

    Raises:
        PluginError: an attribute cannot be read, or is not as the contract says; the message names it.
    """
    for attribute, check in _CHECKS.items():
        try:
            problem = check(getattr(task, attribute))
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            problem = f"{type(error).__name__}: {words_of(error)}"
        if problem:
            raise PluginError(f"{_who(task)}: {attribute}: {problem}")


def _who(task: Task) -> str:
    """The task by its name, or by its class if the name is not valid."""
    name = vars(task).get("name", vars(type(task)).get("name"))
    return f"task '{name}'" if type(name) is str and NAME.fullmatch(name) else f"a task of class {type(task).__name__}"


def _name(value: Any) -> str:
    good = type(value) is str and NAME.fullmatch(value)
    return "" if good else f"expected a name of {_NAME_WORDS}, found {kind_of(value)}"


def _text(value: Any) -> str:
    return "" if type(value) is str else f"expected a text, found {kind_of(value)}"


def _tables(value: Any) -> str:
    """Names with the settings that each stands for."""
    if not isinstance(value, Mapping):
        return f"expected settings by name, found {kind_of(value)}"
    names = list(value)
    problem = next(filter(None, map(_name, names)), "")
    if problem:
        return problem
    if len({name.lower() for name in names}) < len(names):
        return f"expected names that differ in more than case, found {', '.join(names)}"
    return next((f"expected settings as '{name}', found {kind_of(value[name])}" for name in names
                 if not (isinstance(value[name], Mapping) and all(type(key) is str for key in value[name]))), "")


def _variants(value: Any) -> str:
    problem = _tables(value)
    if not problem and ALL in list(value):
        problem = f"expected another name than '{ALL}', which stands for every variant"
    return problem or ("" if value else "expected one or more, found none; {'plain': {}} is one without changes")


def _claims(value: Any) -> str:
    good = isinstance(value, Mapping) and all(type(text) is str for pair in value.items() for text in pair)
    return "" if good else f"expected texts by variant, found {kind_of(value)}"


def _config(value: Any) -> str:
    if not (isinstance(value, type) and issubclass(value, Config) and dataclasses.is_dataclass(value)):
        return f"expected a dataclass that extends Config, found {kind_of(value)}"
    return _fields(value, "config")


def _sampling(value: Any) -> str:
    return _options(value, "sampling")


def _evaluating(value: Any) -> str:
    return _options(value, "evaluating")


def _options(value: Any, attribute: str) -> str:
    if value is None:
        return ""
    if not (isinstance(value, type) and dataclasses.is_dataclass(value)):
        return f"expected a dataclass or None, found {kind_of(value)}"
    return _fields(value, attribute)


def _fields(value: Any, attribute: str) -> str:
    """The fields of a dataclass, which a command line and a run's folder can hold."""
    kinds = typing.get_type_hints(value)
    reserved, owner = RESERVED[attribute]
    for field in dataclasses.fields(value):
        if field.name in reserved:
            return f"expected another name than '{field.name}', which is {owner}"
        if not is_readable(kinds[field.name]):
            return (f"{field.name}: expected a type of int, float, bool, str, None, Literal, and tuples, lists and "
                    f"unions of them, such as tuple[int, ...]; found {kind_in_words(kinds[field.name])}")
        if not field.init or (field.default is field.default_factory is dataclasses.MISSING):
            return f"{field.name}: expected a default, and an argument of the class, found none"
    return ""


def _columns(value: Any) -> str:
    if not isinstance(value, list | tuple) or not all(isinstance(column, Column) for column in value):
        return f"expected a tuple of Column, found {kind_of(value)}"
    for column in value:
        if not all(type(text) is str for text in column):
            return f"expected a column of texts, found {', '.join(map(kind_of, column))}"
        format(0.5, column.form)
    return ""


def _selection(value: Any) -> str:
    good = value is None or (isinstance(value, Sequence) and len(value) == 2 and type(value[0]) is str
                             and value[1] in ("lowest", "highest"))
    return "" if good else f"expected None, or a metric and 'lowest' or 'highest', found {kind_of(value)}"


def _x_axis(value: Any) -> str:
    return "" if value in ("epoch", "step") else f"expected 'epoch' or 'step', found {kind_of(value)}"


def _corpora(value: Any) -> str:
    good = isinstance(value, Mapping) and all(
        type(name) is str and isinstance(corpus, list | tuple) and all(
            isinstance(files, list | tuple) and files and all(type(file) is str for file in files) for files in corpus)
        for name, corpus in value.items())
    return "" if good else f"expected sets of files by name, such as {{'a': [('a/x.npy', 'a/y.npy')]}}, " \
                           f"found {kind_of(value)}"


def _batch_axes(value: Any) -> str:
    good = isinstance(value, Mapping) and all(
        type(key) is str and (axis is None or type(axis) is int) for key, axis in value.items())
    return "" if good else f"expected axes by name, found {kind_of(value)}"


_CHECKS: dict[str, Callable[[Any], str]] = {
    "name": _name, "title": _text, "paper": _text, "config": _config, "presets": _tables, "variants": _variants,
    "references": _claims, "columns": _columns, "selection": _selection, "x_axis": _x_axis, "corpora": _corpora,
    "batch_axes": _batch_axes,
    "sampling": _sampling, "sample_name": _text, "evaluating": _evaluating, "peers": _tables}
"""The error of an attribute in words; empty if there is none."""
