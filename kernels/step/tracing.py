"""Tracing: the rules of a program run with symbols, and what they compute becomes the lines of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.core.step.program import Backward, Call, Forward, Place, Pooled, Program, is_factored
from duoln.core.step.symbol import Buffer, NotBound, Symbol, form_of, trace_rules
from duoln.core.step.telling import Row
from duoln.core.step.trace import KernelLine, Trace, UnboundLine


class _RetraceNeeded(Exception):
    """Instructions that cannot be bound; the rest is traced without them."""

    def __init__(self, instructions: set[int], why: str) -> None:
        super().__init__(why)
        self.instructions, self.why = instructions, why


def trace_of(program: Program, natives: Sequence[Array]) -> tuple[Trace, dict[Place, Any]]:
    """The lines of a program, and its values as symbols."""
    called: dict[int, str] = {}
    while True:
        trace = Trace()
        try:
            with trace_rules(trace):
                return trace, _run(program, natives, trace, called)
        except _RetraceNeeded as again:
            called |= dict.fromkeys(again.instructions - called.keys(), again.why)


def _run(program: Program, natives: Sequence[Array], trace: Trace, called: dict[int, str]) -> dict[Place, Any]:
    values: dict[Place, Any] = {place: trace.symbol("input", place, form_of(x.shape, x.dtype))
                                for place, x in enumerate(natives)}
    for place, x in enumerate(program.constants):
        if x is not None:
            values[place] = trace.symbol("constant", place, x, x) if type(x) is np.ndarray else x
    for k, one in enumerate(program.instructions):
        trace.instruction = k
        if k in called:
            trace.lines.append(UnboundLine(k, called[k]))
            keeps = [buffer for place in one.reads() for buffer in memory_of(values.get(place))]
            for place in one.writes():  # it may be a part of what was given, or hold it
                is_array = place < len(program.forms) and not is_factored(one)
                form = program.forms[place] if is_array else None
                symbol = trace.symbol("returned", place, form_of(*form or (0, "?")))
                symbol.buffer.keeps = keeps
                values[place] = Returned(symbol.buffer) if form is None else symbol
            continue
        try:
            _perform(one, program.backend, values)
        except Exception as error:  # whatever it is, a rule that ends so is not bound
            raise _RetraceNeeded(_bound_together(program, k), f"{type(error).__name__}: {error}") from error
    return values


def _bound_together(program: Program, number: int) -> set[int]:
    """The instructions that are bound only if this one is: those of its rule, and those that read what they save."""
    every = program.instructions
    rule = getattr(every[number], "rule", None)
    parts = {number} | {k for k, one in enumerate(every) if rule and getattr(one, "rule", None) is rule}
    saved = {one.saved for one in every if isinstance(one, Forward | Backward)}
    uses = [saved.intersection((*one.reads(), *one.writes())) for one in every]
    while True:
        together = set().union(*[uses[k] for k in parts])
        more = {k for k in range(len(every)) if not together.isdisjoint(uses[k])}
        if more <= parts:
            return parts
        parts |= more


class Returned(NamedTuple):
    """A value of Python that a call returns; its buffer says which memory it may hold."""

    buffer: Buffer


def memory_of(x: Any) -> list[Buffer]:
    return [x.buffer] if type(x) in (Symbol, Returned) else []


def _perform(one: Any, backend: Any, values: dict[Place, Any]) -> None:
    """Run an instruction with symbols."""
    def of(places: Iterable[Place]) -> list[Any]:
        given = [values.get(place) for place in places]
        if any(type(x) is Returned for x in given):
            raise NotBound("a value of Python")
        return given

    def gout(gouts: tuple[Place, ...], is_tuple: bool) -> Any:
        return tuple(of(gouts)) if is_tuple else of(gouts)[0]

    if isinstance(one, Forward):
        out, saved = one.rule.forward(backend, *of(one.inputs), **one.attrs)
        results = (*(out if one.is_tuple else (out,)), saved)
    elif isinstance(one, Backward):
        assert one.rule.vjp is not None
        results = tuple(one.rule.vjp(backend, *of((one.saved,)), gout(one.gouts, one.is_tuple), one.needs))
    elif isinstance(one, Pooled):
        uses = [(*of((saved,)), gout(gouts, is_tuple)) for saved, gouts, is_tuple in one.uses]
        results = (one.rule.pooled[one.argument](backend, uses),)
    elif isinstance(one, Call):
        results = (one.function(*of(one.inputs)),)
    else:
        values.update(one.computed(of(one.reads())))
        return
    values.update(zip(one.writes(), results, strict=True))


def row_of(line: Any, program: Program, values: dict[Place, Any]) -> Row:
    if isinstance(line, UnboundLine):
        one = program.instructions[line.of]
        rule = getattr(one, "rule", None)
        arrays = [x for place in (*one.reads(), *one.writes()) if type(x := values.get(place)) is Symbol]
        name = rule.name if rule else getattr(getattr(one, "function", None), "__name__", type(one).__name__)
        return Row(name, "Python", [x.shape for x in arrays], sum(x.nbytes for x in arrays), line.why)
    if isinstance(line, KernelLine):
        name, where, arrays = line.entry.name, "kernel", list(symbols_among(line.words))
    else:
        function = getattr(line.function, "func", line.function)
        name, where = function.__name__.lstrip("_"), "NumPy"
        arrays = list(symbols_among((*line.inputs, line.out)))
    return Row(name, where, [x.shape for x in arrays], sum(x.nbytes for x in arrays), "")


def buffers_of(line: Any, program: Program, values: dict[Place, Any]) -> Iterator[Buffer]:
    """The memory that a line reads or writes."""
    if isinstance(line, UnboundLine):
        one = program.instructions[line.of]
        for place in (*one.reads(), *one.writes()):
            yield from memory_of(values.get(place))
    else:
        for symbol in symbols_among(line.words if isinstance(line, KernelLine) else (*line.inputs, line.out)):
            yield symbol.buffer


def symbols_among(words: Iterable[Any]) -> Iterator[Symbol]:
    for word in words:
        if type(word) is Symbol:
            yield word
        elif type(word) is tuple:
            yield from symbols_among(word)
