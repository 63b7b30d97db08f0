"""The variables that a step's Python reads: what they hold would be a constant of the compiled step."""

from __future__ import annotations

import contextlib
import datetime
import dis
import inspect
import io
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import CodeType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from duoln import tree
from duoln.core.tensor import Tensor

_CHANGING = Iterator, random.Random, np.random.Generator, np.random.RandomState
_CLOCKS = time, datetime.datetime, datetime.date
_PLAIN = bool, int, float, complex, str, bytes, type(None), np.generic, type(os.environ)
_UNKNOWN = object()
_MOST_ENTRIES = 1000
Marks = dict[tuple[int, str], Any]
"""Marks of what variables hold, by the number of a function and their name in it."""


def variables(step: Callable[..., Any]) -> Marks:
    """The variables that a step reads: numbers and texts, and which tensors and functions.

    They are those of the functions and of the module around it, of its object, the attributes of all these, and the
    entries of dicts, lists and tuples. Other functions of its module that it calls, and properties, are read as well.
    A clock and what gives other values each time, such as an iterator, differ from themselves.
    """
    marks: Marks = {}
    functions = list(filter(None, [_python_function(step)]))
    for k, function in enumerate(functions):  # more are added
        loaded = dict(_loaded_values(function.__code__, _closure_values(function), function.__globals__))
        for name, value in loaded.items():
            with contextlib.suppress(Exception):  # an object may answer anything, and a tree have no end
                for path, leaf in islice(tree.items(value, name), _MOST_ENTRIES):
                    marks[k, path] = _identity_mark(leaf)
                    called = _python_function(leaf)
                    if called is not None and called.__module__ == functions[0].__module__ and called not in functions:
                        functions.append(called)
    return {place: mark for place, mark in marks.items() if mark is not _UNKNOWN}


def changed_variable(before: Marks, now: Marks) -> str | None:
    """The variable that holds something else; None if there is none. What is new may be an entry of a cache."""
    name = next((place[1] for place, mark in before.items() if place in now and now[place] != mark), None)
    return name and f"it reads the variable {name}, which does not stay the same; give it as an argument"


def _python_function(value: Any) -> Any:
    """The function or method of Python's that a call of this runs, or None."""
    while isinstance(value, partial):
        value = value.func
    value = inspect.unwrap(value)
    call = inspect.getattr_static(type(value), "__call__", None)
    value = MethodType(call, value) if inspect.isfunction(call) else value
    return value if isinstance(getattr(value, "__code__", None), CodeType) else None


def _closure_values(function: Any) -> dict[str, Any]:
    """The values of a function's variables when it is called, but for globals and arguments."""
    code = function.__code__
    known = {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
    if isinstance(function, MethodType):
        known[code.co_varnames[0]] = function.__self__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value
            known[name] = cell.cell_contents
    return known


def _loaded_values(code: CodeType, known: dict[str, Any], of_module: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables that a code and the codes in it load, and the attributes that it looks up in these."""
    name, value = "", _UNKNOWN
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            name, value = one.argval, of_module.get(one.argval, _UNKNOWN)
        elif one.opname.startswith(("LOAD_DEREF", "LOAD_FAST")):  # Python 3.13 loads two at once
            name = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
            value = known.get(name, _UNKNOWN)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name, value = f"{name}.{one.argval}", _attribute(value, one.argval)
        elif one.opname not in ("COPY", "PUSH_NULL"):
            value = _UNKNOWN
        if value is not _UNKNOWN and not isinstance(value, ModuleType):
            yield name, value
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            free = {n: x for n, x in known.items() if n not in nested.co_varnames}
            yield from _loaded_values(nested, free, of_module)


def _attribute(value: Any, name: str) -> Any:
    """An attribute; of a property its function, which is not run."""
    member = inspect.getattr_static(value, name, _UNKNOWN)
    if isinstance(member, MemberDescriptorType):  # of __slots__
        return getattr(value, name, _UNKNOWN)
    function: Any = member.fget if isinstance(member, property) else member
    is_method = inspect.isfunction(function) and not isinstance(value, type | ModuleType)
    return MethodType(function, value) if is_method and name not in getattr(value, "__dict__", ()) else function


def _identity_mark(leaf: Any) -> Any:
    """A mark that is equal as long as a variable holds the same; it keeps no array."""
    if isinstance(leaf, io.IOBase):  # an iterator, to which a step may print
        return _UNKNOWN
    owner = getattr(leaf, "__self__", getattr(leaf, "__objclass__", None))
    if isinstance(leaf, _CHANGING) or isinstance(owner, _CHANGING) or any(owner is clock for clock in _CLOCKS):
        return object()
    if isinstance(leaf, _PLAIN):
        return type(leaf), repr(leaf)  # NaN is NaN, and 0.0 is not -0.0
    is_one = isinstance(leaf, Tensor | np.ndarray) or (callable(leaf) and not isinstance(leaf, MethodType))
    return id(leaf) if is_one else _UNKNOWN
