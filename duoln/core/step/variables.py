"""The variables that a step's Python reads: what they hold would be a constant of the compiled step."""

from __future__ import annotations

import contextlib
import datetime
import dis
import functools
import inspect
import os
import random
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from duoln import tree
from duoln.core.tensor import Tensor
from duoln.errors import DuolnError

_CHANGING = Iterator, random.Random, np.random.Generator, np.random.RandomState
_CLOCKS = time, datetime.datetime, datetime.date
_PLAIN = bool, int, float, complex, str, bytes, type(None), np.generic, type(os.environ)
_UNKNOWN = object()


Marks = dict[tuple[int, str], Any]
"""What variables hold, by the number of a function and their name in it."""


def variables(step: Callable[..., Any]) -> Marks:
    """What the variables that a step reads hold: numbers, texts, and which tensors and functions.

    They are those of the functions and of the module around it, of its object, the attributes of all these, and the
    entries of dicts, lists and tuples. Other functions of its module that it calls, and properties, are read as well.
    A clock and what gives other values each time, such as an iterator, differ from themselves.
    """
    marks: Marks = {}
    functions: list[Any] = [_python_of(step)]
    for k, function in enumerate(functions):  # more are added
        known = _known(function)
        for name, value in _chains(function.__code__, known, function.__globals__) if known is not None else ():
            with contextlib.suppress(DuolnError, RuntimeError):  # a tree without an end, or that another thread changes
                for path, leaf in tree.items(value, name):
                    marks[k, path] = _mark(leaf)
                    called = _python_of(leaf)
                    if isinstance(called, FunctionType | MethodType) and called.__module__ == functions[0].__module__ \
                            and called not in functions:
                        functions.append(called)
    return {place: mark for place, mark in marks.items() if mark is not _UNKNOWN}


def changed(before: Marks, now: Marks) -> str | None:
    """The name of a variable that holds something else; None if there is none. What is new may be in a cache."""
    return next((place[1] for place, mark in before.items() if place in now and now[place] != mark), None)


def _python_of(value: Any) -> Any:
    """The function or method with Python's code that a call of this runs; the value itself if there is none."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value)
    call = inspect.getattr_static(type(value), "__call__", None)
    return MethodType(call, value) if inspect.isfunction(call) else value


def _known(function: Any) -> dict[str, Any] | None:
    """What a function's variables hold when it is called, but for globals; None for a function written in C."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    defaults = function.__defaults__ or ()
    names = code.co_varnames[:code.co_argcount]
    known = {**dict(zip(names[len(names) - len(defaults):], defaults, strict=True)), **(function.__kwdefaults__ or {})}
    if isinstance(function, MethodType):
        known[names[0] if names else ""] = function.__self__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value
            known[name] = cell.cell_contents
    return known


def _chains(code: CodeType, known: dict[str, Any], of_module: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables that a code and the codes in it load, and the attributes that it looks up in these."""
    name, value = "", _UNKNOWN
    for one in dis.get_instructions(code):
        argument = one.argval
        if one.opname == "LOAD_GLOBAL":
            name, value = argument, of_module.get(argument, _UNKNOWN)
        elif one.opname.startswith(("LOAD_DEREF", "LOAD_FAST")):
            name = argument[-1] if isinstance(argument, tuple) else argument
            value = known.get(name, _UNKNOWN)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name, value = f"{name}.{argument}", _attribute(value, argument)
        elif one.opname not in ("COPY", "PUSH_NULL"):
            value = _UNKNOWN
        if value is not _UNKNOWN:
            yield name, value
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            yield from _chains(nested, {n: x for n, x in known.items() if n not in nested.co_varnames}, of_module)


def _attribute(value: Any, name: str) -> Any:
    """An attribute; of a property its function, which is not run."""
    member = inspect.getattr_static(value, name, _UNKNOWN)
    if isinstance(member, property):
        return MethodType(member.fget, value) if member.fget else _UNKNOWN
    if isinstance(member, MemberDescriptorType):  # of __slots__
        return getattr(value, name, _UNKNOWN)
    is_method = inspect.isfunction(member) and not isinstance(value, type | ModuleType)
    return MethodType(member, value) if is_method and name not in getattr(value, "__dict__", ()) else member


def _mark(leaf: Any) -> Any:
    """What a variable holds, as something that can be compared later; it keeps no array."""
    owner = getattr(leaf, "__self__", getattr(leaf, "__objclass__", None))
    if isinstance(leaf, _CHANGING) or isinstance(owner, _CHANGING) or any(owner is clock for clock in _CLOCKS):
        return object()
    if isinstance(leaf, _PLAIN):
        return type(leaf), repr(leaf)  # NaN is NaN, and 0.0 is not -0.0
    is_one = isinstance(leaf, Tensor | np.ndarray) or (callable(leaf) and not isinstance(leaf, MethodType))
    return id(leaf) if is_one else _UNKNOWN
