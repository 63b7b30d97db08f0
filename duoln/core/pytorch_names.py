"""Names of PyTorch, NumPy or JAX, with duoln's way of doing the same: the end of errors.

The answers stand in `bridge/pytorch_names.json`. What is between backticks is a line of code; the tests run each beside
PyTorch's. In them `x` and `y` are tensors.

Modules look a name up here when they lack it. Classes get a descriptor for each name, because a `__getattr__` of the
class would make every access to their attributes slower.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from importlib.resources import files
from typing import Any, Never, ParamSpec, TypeVar

from duoln.core.arguments import did_you_mean
from duoln.errors import DtypeError

P = ParamSpec("P")
R = TypeVar("R")
_CELL, _QUOTED = re.compile(r"(?<!\\)\|"), re.compile(r"`([^`]+)`")

_PHRASE = re.compile(r"\$\{?(\w+)\}?")


def _read() -> dict[str, dict[str, Any]]:
    """The tables of `bridge/pytorch_names.json`: an answer for each name. There a key has the names that share an
    answer, and `$gradient` stands for the phrase of that name.
    """
    tables = json.loads(files("duoln").joinpath("bridge", "pytorch_names.json").read_text(encoding="utf-8"))
    phrases: dict[str, str] = {}

    def whole(answer: Any) -> Any:
        return _PHRASE.sub(lambda match: phrases[match[1]], answer) if isinstance(answer, str) else answer

    for name, phrase in tables["phrases"].items():
        phrases[name] = whole(phrase)  # of those before it
    return {table: {name: whole(answer) for names, answer in answers.items() for name in names.split()}
            for table, answers in tables.items()}


_TABLES = _read()
OF_DUOLN, OF_NN, OF_OPTIM = _TABLES["OF_DUOLN"], _TABLES["OF_NN"], _TABLES["OF_OPTIM"]
OF_DATA, OF_INIT, OF_STREAMS = _TABLES["OF_DATA"], _TABLES["OF_INIT"], _TABLES["OF_STREAMS"]
OF_MODULES, OF_OPTIMIZERS, OF_RECURRENT = _TABLES["OF_MODULES"], _TABLES["OF_OPTIMIZERS"], _TABLES["OF_RECURRENT"]
"""Names that a module or a class has not, and duoln's way of doing the same."""
OF_OPS, OF_TENSORS = ({**_TABLES["OF_BOTH"], **_TABLES[table]} for table in ("OF_OPS", "OF_TENSORS"))
KEYWORDS = _TABLES["KEYWORDS"]
"""Arguments of PyTorch, and what they may be called here, each call having one of these."""
NO_KEYWORDS = _TABLES["NO_KEYWORDS"]
"""Arguments of PyTorch that nothing here has, with duoln's way of doing the same."""
ABSENT = _TABLES["ABSENT"]
"""Arguments that a call needs and that PyTorch's has not: where they come from."""
OF_PYTHON = _TABLES["OF_PYTHON"]
"""Python's operators that tensors have not: their signs, and duoln's way of doing the same."""
MASK = _TABLES["phrases"]["mask"]
"""The mask of time-major sequences."""
_NONE = "there is none"


def refuse_operators(kind: type) -> None:
    """Let a class name the remedy for each operator of Python's that it has not."""
    for name, (sign, remedy) in OF_PYTHON.items():
        def refuse(self: Any, y: Any, sign: str = sign, remedy: str = remedy) -> Never:
            raise DtypeError(f"[{sign}] expected an operator that tensors have, found {sign}; in duoln: {remedy}")

        setattr(kind, f"__{name}__", refuse)
        setattr(kind, f"__r{name}__", refuse)


@cache
def of_standard() -> dict[str, str]:
    """The answers of the page of operators for names of the array API standard that duoln has not."""
    text = files("duoln").joinpath("docs", "operators.md").read_text(encoding="utf-8")
    rows = [[cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]] for line in text.splitlines()
            if line.startswith("|")]
    absent = next(k for k, row in enumerate(rows) if row == ["reason", "functions"])
    named = next(k for k, row in enumerate(rows) if row == ["function", "expression"])
    answers = {name: expression for names, expression in rows[named + 2:absent] for name in _QUOTED.findall(names)}
    answers |= {name: f"{_NONE}: {reason}" for reason, names in rows[absent + 2:] for name in _QUOTED.findall(names)}
    return {name.removesuffix(".*").rpartition(".")[2]: answer for name, answer in answers.items()}


def our_word(keyword: str, known: Iterable[str] | None = None) -> str | None:
    """Our name for an argument of PyTorch, among the arguments `known` of a call; in a bridge, its name for ours.

    None if there is none.
    """
    names = KEYWORDS.get(keyword, "").split()
    if known is None:
        return next(iter(names), None)
    return next((name for name in (*names, *(k for k, ours in KEYWORDS.items() if keyword in ours.split()))
                 if name in known), None)


def how_to_name(keyword: str, parameters: Iterable[str]) -> str:
    """The end of an error about an argument that a call has not: our name for it, duoln's way, or the nearest name."""
    known = list(parameters)
    near = our_word(keyword, known)
    if near is not None:
        return f"; did you mean {near!r}?"
    if keyword in NO_KEYWORDS:
        return f"; in duoln: {NO_KEYWORDS[keyword]}"
    return did_you_mean(keyword, known)


def add_hint(error: TypeError, function: Callable[..., Any], keywords: Iterable[str] = ()) -> None:
    """Let the error of a call of `function` end with our name for an argument that it has not, or with what gives one
    that is missing; `keywords` are the names that the call gives.
    """
    if type(error) is not TypeError:
        return
    hint, known = "", inspect.signature(function).parameters
    if unknown := re.search(r"got an unexpected keyword argument '(\w+)'", str(error)):
        if unknown[1] not in known:  # else a function that this one calls has not the argument
            hint = how_to_name(unknown[1], known)
    elif missing := re.search(r"missing \d+ required .* arguments?: (.*)", str(error)):
        names = re.findall(r"'(\w+)'", missing[1])
        hint = next((f"; {ABSENT[name]}" for name in names if name in ABSENT), "")
        for keyword in keywords:
            if keyword not in known and our_word(keyword, names):
                hint += f"; {keyword!r} is {our_word(keyword, names)!r} in duoln"
    elif re.search(rf"\b{function.__name__}\(\) takes .* positional arguments?", str(error)):
        options = [f"{name}=" for name, each in known.items() if each.kind is each.KEYWORD_ONLY]
        hint = f"; {', '.join(options)} by name" if options else ""
    error.args = (f"{error}{hint}",)


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose error for an unknown argument ends with our name for it."""
    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            add_hint(error, function, kwargs)
            if function.__name__ == "__init__":  # of a class that inherits it
                error.args = (str(error).replace(function.__qualname__, f"{type(args[0]).__qualname__}.__init__"),)
            raise

    return called


class _Missing:
    """An attribute that a class has not. Reading it raises an AttributeError that says what to write instead."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name, self._remedy = name, remedy
        self.__doc__ = f"PyTorch's; in duoln: {remedy}."  # what `help` shows

    def __get__(self, instance: Any, owner: type) -> Never:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; in duoln: {self._remedy}",
                             name=self._name, obj=None)

    def __repr__(self) -> str:
        return f"<no attribute; in duoln: {self._remedy}>"


def name_missing(kind: type, remedies: Mapping[str, str]) -> None:
    """Let a class name the remedy for each attribute that it has not."""
    for name, remedy in remedies.items():
        if name not in dir(kind):
            setattr(kind, name, _Missing(name, remedy))


def present_names(thing: object, names: Iterable[str]) -> list[str]:
    """For `dir`: the names without those that only say what to write instead."""
    return [name for name in names if not is_missing(inspect.getattr_static(type(thing), name, None))]


def is_missing(member: object) -> bool:
    """True if a member of a class only says what to write instead."""
    return isinstance(member, _Missing)
