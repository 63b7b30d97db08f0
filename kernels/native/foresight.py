"""The kernels that a function will need, found from the operators that its code names.

A network uses a few kernels of many, and asks for one after the other. So the first one that is missing is compiled
beside those that the function around will ask for. They are found as a compiler finds the functions that a program may
call, by rapid type analysis (Bacon, Sweeney 1996): a name in code that is reached stands for what has it in the code's
module, and for the method of each kind of object that is reached. From an operator the way leads to its fused rules,
and from these to their kernels. Of a table of records by words, such as those of a cell's norms, the entries count
whose word a reached object has. What is found too much is compiled last, and what is overlooked when it is asked for.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from duoln.core import Op, Rule

_OF_OTHERS = frozenset({*sys.stdlib_module_names, "numpy", "duoln.core", "duoln.errors", "duoln.tree"})
"""Packages and modules whose code calls no operator but those that it is given."""
_PLAIN = (str, bytes, int, float, complex, type(None))
_MOST_ENTRIES = 100
"""Entries of a container that are looked at: layers and functions stand in short ones."""


class _Search:
    """The objects that have been reached from a function, nearest first."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._waiting = deque[Any]()
        self._tables, self._words = deque[dict[str, Any]](), set[str]()
        self._seen = dict[int, Any]()
        """The objects by `id`; they stay here, so that no other object gets the number."""
        self._names = dict[str, None]()
        self._types = set[type]()
        self._attributes = list[Mapping[str, Any]]()
        """Those of the objects and classes that were reached."""

    def reach(self, *things: Any) -> None:
        for thing in things:
            if not isinstance(thing, _PLAIN) and id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                self._waiting.append(thing)

    def files(self) -> Iterator[str]:
        """The kernels' files, each perhaps often."""
        while self._waiting or self._tables:
            if not self._waiting:
                table = self._tables.popleft()
                self.reach(*([each for word, each in table.items() if word in self._words] or table.values()))
                continue
            thing = self._waiting.popleft()
            if (file := _attributes(thing).get("cpp_file")) is not None:
                yield file
            elif isinstance(thing, Op):
                rules = thing.rules(self._backend) if thing.has_rules else []
                self.reach(*rules[:-1] or (thing.function, *rules))
            elif isinstance(thing, Rule):
                self.reach(thing.forward, thing.vjp, *thing.pooled.values(), *thing.factors.values())
            elif isinstance(thing, FunctionType):
                self._follow(thing)
            elif isinstance(thing, MethodType):
                self.reach(thing.__func__, thing.__self__)
            elif isinstance(thing, partial):
                self.reach(thing.func, thing.args, thing.keywords)
            elif _is_table(thing):
                self._tables.append(thing)
            elif (entries := _entries(thing)) is not None:
                self.reach(*entries)
            elif isinstance(thing, property):
                self.reach(thing.fget)
            elif isinstance(thing, staticmethod | classmethod):
                self.reach(thing.__func__)
            elif not isinstance(thing, ModuleType):
                self._take_apart(thing)

    def _follow(self, function: FunctionType) -> None:
        """Reach what a function's code names. Functions of other packages, and the core's, come to ours by closures."""
        captured = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # an empty one
        self.reach(*captured, getattr(function, "__wrapped__", None))
        if _is_of_others(function):
            return
        names, known = _names_in(function.__code__), function.__globals__
        values = [known[name] for name in names if name in known]
        self.reach(*(vars(value)[name] for value in [*captured, *values] if isinstance(value, ModuleType)
                     for name in names if name in vars(value)), *values)
        fresh = [name for name in names if name not in self._names]
        self._names |= dict.fromkeys(fresh)
        for attributes in self._attributes:
            self._reach_named(attributes, fresh)

    def _take_apart(self, thing: Any) -> None:
        """Those attributes and methods of an object that code names; a class stands for the objects made of it."""
        kind = thing if isinstance(thing, type) else type(thing)
        if _is_of_others(kind):
            self.reach(_attributes(thing).get("__wrapped__"))  # a compiled step, or a function with a cache
            return
        own: list[Mapping[str, Any]] = [] if isinstance(thing, type) else [_attributes(thing)]
        self._words.update(word for attributes in own for word in attributes.values() if type(word) is str)
        if kind not in self._types:
            self._types.add(kind)
            own += [vars(base) for base in kind.__mro__ if not _is_of_others(base)]
        self._attributes += own
        for attributes in own:
            self._reach_named(attributes, ["__init__", "__call__", *self._names])

    def _reach_named(self, attributes: Mapping[str, Any], names: Sequence[str]) -> None:
        self.reach(*(attributes[name] for name in names if name in attributes))


def files_of(function: Callable[..., Any]) -> list[str]:
    """The C++ files that NumPy's rules of the operators that a function calls may need, the nearest first."""
    search = _Search("numpy")
    search.reach(function)
    return list(dict.fromkeys(search.files()))


def _is_table(thing: Any) -> bool:
    return type(thing) is dict and bool(thing) and all(
        type(word) is str and isinstance(each, tuple) for word, each in islice(thing.items(), _MOST_ENTRIES))


def _entries(thing: Any) -> list[Any] | None:
    """The first entries of a container, without a call of its own code; None of another object."""
    if isinstance(thing, dict):
        return list(islice(dict.values(thing), _MOST_ENTRIES))
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset)
    return next((list(islice(kind.__iter__(thing), _MOST_ENTRIES)) for kind in kinds if isinstance(thing, kind)), None)


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an object by name, without a call of its own code."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(thing, "__dict__")
    except AttributeError:  # it has slots, or nothing
        return {}
    return attributes


def _is_of_others(thing: Any) -> bool:
    parts = (getattr(thing, "__module__", None) or "").split(".")
    return parts[0] in _OF_OTHERS or ".".join(parts[:2]) in _OF_OTHERS


def _names_in(code: CodeType) -> list[str]:
    """The names in a function's code and in that of the functions within it."""
    within = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names_in(each)]
    return [*code.co_names, *within]
