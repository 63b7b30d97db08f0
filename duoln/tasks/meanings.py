"""The meaning of each setting: the string under its field, which is also what documentation tools read.

    @dataclass(frozen=True)
    class MyConfig(Config):
        width: int = 32
        '''Units of each hidden layer.'''

Python drops such strings, so they are read from the source, which wheels and checkouts contain.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from typing import Any, NamedTuple

from duoln.tasks.kinds import kind_in_words
from duoln.tasks.task import Config, Task


class Setting(NamedTuple):
    """A setting of a task, as one reads it."""

    name: str
    kind: str
    """What it may be, in words: `int`, `float or none`, `one of layer, none`."""
    default: Any
    meaning: str
    """Empty if the class says nothing, or if its source is not there."""


def settings_of(task: Task) -> list[Setting]:
    """The settings of a task, in the order of its class."""
    kinds, meanings = typing.get_type_hints(task.config), meanings_of(task.config)
    defaults = task.config()
    return [Setting(f.name, kind_in_words(kinds[f.name]), getattr(defaults, f.name), meanings.get(f.name, ""))
            for f in dataclasses.fields(task.config)]


def meanings_of(config: type[Config]) -> dict[str, str]:
    """The strings under the fields of a class and of its bases, by field; a field that is defined again keeps its
    base's string unless it has its own.
    """
    meanings: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if dataclasses.is_dataclass(kind):
            meanings |= _own_meanings(kind)
    return meanings


def has_source(config: type[Config]) -> bool:
    """Whether the source of a class is there; one that was typed into an interpreter has none."""
    try:
        inspect.getsource(config)
    except (OSError, TypeError):
        return False
    return True


def _own_meanings(kind: type) -> dict[str, str]:
    if not has_source(kind):
        return {}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    meanings = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)):
            meanings[field.target.id] = " ".join(below.value.value.split())
    return meanings
