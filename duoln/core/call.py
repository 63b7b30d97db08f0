"""The function that a call of an operator runs: straight-line Python, made from the signature and the declaration.

Each argument is tested by one expression. Where it fails, the check is called that explains the error, or that finds
the argument right after all, as 16 bits beside float32. Tracebacks show the text of these functions.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import typing
from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from duoln.core.arguments import Interval, Whole, check_choice, check_flag, check_integer, check_number
from duoln.core.spec import Spec
from duoln.core.tensor import Tensor


class Attribute(NamedTuple):
    """The values that an attribute may have, from its annotation."""

    name: str
    kind: Interval | Whole | tuple[str | None, ...] | type
    """Numbers, integers, choices, or bool."""
    optional: bool
    """True if None is allowed."""

    @property
    def test(self) -> str:
        """The expression that is true of the usual values."""
        if isinstance(self.kind, Interval):
            usual = f"type({self.name}) is float and {self.kind.test.format(self.name)}"
        elif isinstance(self.kind, Whole):
            usual = f"type({self.name}) is int and {self.kind.low} <= {self.name} <= {self.kind.high}"
        elif self.kind is bool:
            usual = f"{self.name} is True or {self.name} is False"
        else:
            usual = f"type({self.name}) is str and {self.name} in {self.kind!r}"
        return f"{self.name} is None or {usual}" if self.optional else usual

    def check(self, op: str, value: Any) -> Any:
        """The value as a plain one of Python's. Raises as the checks of `core.arguments`."""
        if value is None and self.optional:
            return None
        if isinstance(self.kind, Interval):
            return check_number(op, self.name, value, self.kind)
        if isinstance(self.kind, Whole):
            return check_integer(op, self.name, value, self.kind.low, self.kind.high)
        if isinstance(self.kind, tuple):
            return check_choice(op, self.name, value, self.kind)
        return check_flag(op, self.name, value)


def attributes(function: Callable[..., Any]) -> list[Attribute]:
    """The attributes of a function whose annotations say what they may be, in order."""
    known = []
    for name, hint in get_type_hints(function, include_extras=True).items():
        parts = get_args(hint) if get_origin(hint) in (typing.Union, type(int | None)) else (hint,)
        optional = type(None) in parts
        kind: Any = next((part for part in parts if part is not type(None)), None)
        if get_origin(kind) is Annotated and isinstance(get_args(kind)[-1], Interval | Whole):
            known.append(Attribute(name, get_args(kind)[-1], optional))
        elif get_origin(kind) is Literal:
            known.append(Attribute(name, (*get_args(kind), *((None,) if optional else ())), optional))
        elif kind is bool and name != "return":
            known.append(Attribute(name, bool, optional))
    return known


def compile_call(op: Any) -> Callable[..., Any]:
    """The function of an operator (`core.op.Op`), with its checks."""
    function: Callable[..., Any] = op.function
    spec = op.spec
    parameters = list(inspect.signature(function).parameters.values())
    known = {"Tensor": Tensor, "inf": inf, "__op": op, "__function": function}  # arguments may be named op, function
    lines = []
    if spec is not None and _is_empty(function):
        lines += _checks(spec)
    for each in attributes(function):
        known[f"__of_{each.name}"] = each
        lines += [f"if not ({each.test}):", f"    {each.name} = __of_{each.name}.check(__op.name, {each.name})"]
    if not lines and not _is_empty(function):
        return function
    target = "__op.apply" if _is_empty(function) else "__function"
    by_place = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if target == "__op.apply":  # what is no array is an attribute
        arrays_of = [each.name for each in spec.inputs] if spec else by_place
        given = [*arrays_of, *(f"{p.name}={p.name}" for p in parameters if p.name not in arrays_of)]
    else:
        given = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name if p.name in by_place else f"{p.name}={p.name}"
                 for p in parameters]
    head: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in head and not any(h.startswith("*") for h in head):
            head.append("*")
        known[f"__default_{p.name}"] = p.default
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        head.append(f"{star}{p.name}" + ("" if p.default is p.empty else f"=__default_{p.name}"))
    text = "\n    ".join([f"def {op.name}({', '.join(head)}):", *lines, f"return {target}({', '.join(given)})"])
    return function_of_text(text + "\n", op.name, f"<operator {op.__module__}.{op.name}>", known)


def compile_check(op: Any) -> Callable[..., None]:
    """The function that checks the arrays of an operator."""
    assert op.spec is not None
    names = ", ".join(each.name for each in op.spec.inputs)
    text = "\n    ".join([f"def check({names}):", *_checks(op.spec)])
    file = f"<check of {op.__module__}.{op.name}>"
    return function_of_text(text + "\n", "check", file, {"Tensor": Tensor, "__op": op})


def _checks(spec: Spec) -> list[str]:
    names = ", ".join(each.name for each in spec.inputs)
    return [f"if not ({spec.test()}):", f"    __op.spec.check(__op.name, {names})"]


def function_of_text(text: str, name: str, file: str, known: dict[str, Any]) -> Callable[..., Any]:
    """The function `name` of a text in which some names are known; tracebacks show its lines."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), known)
    function: Callable[..., Any] = known[name]
    return function


def _is_empty(function: Callable[..., Any]) -> bool:
    """True if the body of a function is only its docstring: it loads None and returns it."""
    body = [each for each in dis.get_instructions(function) if each.opname != "RESUME"]
    return body[0].opname in ("LOAD_CONST", "RETURN_CONST") and body[0].argval is None and len(body) <= 2
