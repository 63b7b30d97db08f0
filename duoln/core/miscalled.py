"""The error of a call whose arguments do not fit a signature: which are given by name, which are missing or unknown."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from duoln.core.arguments import name_of
from duoln.core.pytorch_names import ABSENT, how_to_name, our_word
from duoln.errors import CallError

P = ParamSpec("P")
R = TypeVar("R")
_CALL_RULES = {f"duoln.{name}" for name in (
    "core.op", "core.rule", "core.derived", "core.tape", "core.recording", "core.storage", "core.watching",
    "testing.operators")}
"""The modules that call functions of rules."""
_NAMED = inspect.Parameter.KEYWORD_ONLY
_REST, _OPTIONS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def is_of_call(trace: TracebackType | None) -> bool:
    """Whether an error, by its traceback in the frame that caught it, comes from binding the arguments of a call."""
    return trace is not None and trace.tb_next is None


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """A function, method or constructor whose error for arguments that do not fit has the form of the call."""
    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if type(error) is TypeError and is_of_call(error.__traceback__):
                raise _wrong_call_of(function, args, kwargs) from None
            raise

    return called


def _wrong_call_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallError:
    signature, name = inspect.signature(function), function.__name__
    taken = list(signature.parameters.values())
    if taken and taken[0].name == "self" and args:
        owner = type(args[0]).__name__
        name, args = owner if name in ("__init__", "__call__") else f"{owner}.{name}", args[1:]
        signature = signature.replace(parameters=taken[1:])
    return wrong_call(name, signature, args, kwargs)


def check_fit(error: TypeError, where: str, role: str, function: Any, arrays: int, attrs: Iterable[str] = ()) -> None:
    """Raise CallError if an error comes from binding the arguments of a rule's function.

    Args:
        error: it was raised in the call.
        where: operator and rule.
        role, function: the function and what it is in the rule: forward, vjp or supports.
        arrays, attrs: the number of arrays and the attributes with which forward and supports are called.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or type(error) is not TypeError or trace.tb_frame.f_globals.get("__name__") not in _CALL_RULES:
        return
    kind, first = ("tensor", "") if function.__module__ == "duoln.core.derived" else ("array", "backend, ")
    gives = "backend, saved, gout, needs" if role == "vjp" else \
        f"{first}{arrays} {kind}{'' if arrays == 1 else 's'}{''.join(f', {name}=' for name in attrs)}"
    has = _spelled(inspect.signature(function))
    raise CallError(f"{where}: expected {role}({gives}), found {role}({has})") from None


def wrong_call(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallError:
    """The error of `name(*args, **kwargs)`, which does not fit the signature."""
    parameters = signature.parameters
    kinds = {p.kind for p in parameters.values()}
    by_place = [p for p in parameters.values() if p.kind not in (_NAMED, _REST, _OPTIONS)]
    by_name = [p for p in parameters.values() if p.kind is _NAMED]
    form = f"{name}({_spelled(signature)})"
    if len(args) > len(by_place) and _REST not in kinds:
        count = f"{len(by_place)} argument{'' if len(by_place) == 1 else 's'}"
        example = f" {by_name[0].name}={args[len(by_place)]!r:.30}" if by_name else ""
        goes = "goes" if len(by_name) == 1 else "go"
        named = f"; write{example}: {_listed([p.name for p in by_name])} {goes} by name" if by_name else ""
        return CallError(f"[{name}] expected at most {count} by position, found {len(args)}{named}. It is {form}")
    strange = next((key for key in kwargs if key not in parameters), None)
    if strange is not None and _OPTIONS not in kinds:
        return CallError(f"[{name}] expected arguments of {form}, found {strange!r}{how_to_name(strange, parameters)}")
    twice = next((p.name for p in by_place[:len(args)] if p.name in kwargs), None)
    if twice is not None:
        return CallError(f"[{name}] expected {twice} once, found it by position and by name; it is {form}")
    absent = [p.name for p in [*by_place[len(args):], *by_name] if p.default is p.empty and p.name not in kwargs]
    given = [*(p.name for p, _ in zip(by_place, args, strict=False)), *kwargs]
    meant = {key: word for key in kwargs if key not in parameters and (word := our_word(key, absent))}
    advice = next((f"; {ABSENT[each]}" for each in absent if each in ABSENT), "")
    if meant:
        advice = f"; did you mean {_listed([f'{word} for {key}' for key, word in meant.items()])}?"
    return CallError(f"[{name}] expected {_listed(absent)} too, found "
                     f"{'only ' if given else ''}{_listed(given)}{advice}; it is {form}")


def _spelled(signature: inspect.Signature) -> str:
    """The parameters with their defaults, functions by name, and without their types."""
    bare = [p.replace(annotation=p.empty, default=_Named(p.default) if inspect.isroutine(p.default) else p.default)
            for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]


class _Named:
    """A function as a default in the text of a signature."""

    def __init__(self, function: Any) -> None:
        self._name = name_of(function)

    def __repr__(self) -> str:
        return self._name


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"
