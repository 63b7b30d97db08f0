"""Chains in compiled steps: elementwise rules that follow each other are one pass over their arrays.

The values between them are not written, unless something else reads them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from duoln.backends.protocol import Array
from duoln.core import Rule
from duoln.core.step.program import Backward, Call, Forward, Instruction, Keep, Place, Program, names
from duoln.kernels.elementwise.engine import MOST_STEPS, SUM, Chain
from duoln.kernels.elementwise.passes import OneFormula, Passes, Saved, reduce_axes
from duoln.kernels.elementwise.reductions import SUM_RULE
from duoln.kernels.native.loading import NAMES

_LEAST = 1 << 12
"""Values below which a chain takes no less time than its instructions."""
Key = tuple[tuple[int, ...], str]
"""The shape of the values of a chain, and the character of their dtype."""


class Link(NamedTuple):
    """An instruction as formulas."""

    one: Instruction
    key: Key
    steps: list[tuple[str, list[Place], Place]]
    """For each formula its name, the places of its arguments, and that of its result; none of a sum."""

    def reads(self) -> set[Place]:
        """The values that it takes."""
        return {place for _, taken, _ in self.steps for place in taken} if self.steps else set(self.one.reads())


class _Save(NamedTuple):
    """The origin of a value that a rule would have saved."""

    place: Place
    of: OneFormula
    names: Mapping[str, Place]
    shapes: tuple[tuple[int, ...] | None, ...]


class _Sum(NamedTuple):
    """The sum in which a chain ends."""

    place: Place
    saved: Place
    shape: tuple[int, ...]
    """The shape of what is summed."""
    axes: tuple[int, ...]
    summed: tuple[int, ...]
    """The shape of the sum."""


class Fused(NamedTuple):
    """A chain in the place of some instructions."""

    chain: Chain
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    saves: tuple[_Save, ...]
    """For instructions that are in no chain."""
    sum: _Sum | None

    def text(self, keep: Keep) -> str:
        """The statements that compute the results."""
        given, results = names(self.inputs), f"[{names(self.outputs)}]"
        lines = [f"{results} = {keep(self.chain)}({given})"]
        if self.sum:
            lines = [f"v{self.sum.place}, v{self.sum.saved}, {results} = {keep(self._summed)}({given})"]
        for place, of, read, shapes in self.saves:
            values = ", ".join([f"{name!r}: v{k}" for name, k in read.items()])
            lines.append(f"v{place} = {keep(Saved)}({keep(of)}, {{{values}}}, {shapes})")
        return "; ".join(lines)

    def run_statements(self, given: Sequence[Any]) -> dict[Place, Any]:
        """The values that the statements compute, by their places, of those that it reads."""
        values = dict(zip(self.reads(), given, strict=True))
        own = given[:len(self.inputs)]
        if self.sum:
            values[self.sum.place], values[self.sum.saved], results = self._summed(*own)
        else:
            results = self.chain(*own)
        values |= dict(zip(self.outputs, results, strict=True))
        for place, of, read, shapes in self.saves:
            values[place] = Saved(of, {name: values[k] for name, k in read.items()}, shapes)
        return {place: values[place] for place in self.writes()}

    def _summed(self, *given: Array | float) -> tuple[Array, Any, list[Array]]:
        assert self.sum
        _, _, shape, axes, summed = self.sum
        sums, results = reduce_axes(SUM, self.chain, shape, axes, *given)
        return sums.reshape(summed), (shape, axes), results

    def reads(self) -> tuple[Place, ...]:
        """The places that it reads."""
        return (*self.inputs, *[place for save in self.saves for place in save.names.values()])

    def writes(self) -> tuple[Place, ...]:
        """The places that it writes."""
        sums = self.sum[:2] if self.sum else ()
        return (*self.outputs, *sums, *[save.place for save in self.saves])


def fuse(program: Program, rules: Mapping[Rule, Passes]) -> Program:
    """The program, in which instructions of the rules that have formulas are chains."""
    links = _Links(program, rules)
    items = list(_grouped(program, links))
    readers = Counter(set(program.results))
    for item in items:
        readers.update(set().union(*[link.reads() for link in item]) if isinstance(item, list) else set(item.reads()))
    fused: list[Any] = [links.chain(item, readers) if isinstance(item, list) else item for item in items]
    return replace(program, constants=links.constants, instructions=fused)


class _Links:
    """The instructions of a program as formulas."""

    def __init__(self, program: Program, rules: Mapping[Rule, Passes]) -> None:
        self.constants = program.constants.copy()
        self._rules, self._forms = rules, program.forms
        self._forwards = {one.saved: one for one in program.instructions if isinstance(one, Forward)}

    def of(self, one: Instruction) -> Link | None:
        """An instruction as formulas; None if it is no elementwise one, or adds up over a broadcast axis."""
        if isinstance(one, Call):
            form = self._forms[one.output]
            is_sum = one.function is operator.add and form is not None and form[1] in NAMES
            return Link(one, form[:2], [("add", list(one.inputs), one.output)]) if is_sum and form else None
        if isinstance(one, Forward) and one.rule in self._rules:
            form = self._forms[one.outputs[0]]
            dtype = next((f[1] for f in (self._forms[k] for k in one.inputs) if f and f[1] in NAMES), None)
            if form is None or dtype is None:
                return None
            of = self._rules[one.rule].of(one.attrs)
            return Link(one, (form[0], dtype), [(of.name, list(self._names(one).values())[:-1], one.outputs[0])])
        if isinstance(one, Backward) and one.rule in self._rules:
            return self._gradients(one, self._forwards[one.saved])
        if isinstance(one, Forward) and one.rule is SUM_RULE:
            form = self._forms[one.inputs[0]]
            return Link(one, form[:2], []) if form else None
        return None

    def _gradients(self, one: Backward, forward: Forward) -> Link | None:
        form = self._forms[one.gouts[0]]
        known = self._names(forward) | {"g": one.gouts[0]}
        steps = []
        for k, slope in enumerate(self._rules[one.rule].of(forward.attrs).slopes):
            if one.needs[k] and slope:
                mine = self._forms[forward.inputs[k]]
                if form is None or mine is None or mine[0] != form[0]:
                    return None
                steps.append((slope.name, [known[name] for name in slope.arguments], one.outputs[k]))
        return Link(one, form[:2], steps) if form and steps else None

    def _names(self, one: Forward) -> dict[str, Place]:
        """The places of the values that formulas name: arguments, attributes, and last the result."""
        of = self._rules[one.rule].of(one.attrs)
        known = dict(zip(of.arguments, one.inputs, strict=False))
        for name in of.attributes:
            known[name] = len(self.constants)
            self.constants.append(one.attrs[name])
        return known | {"r": one.outputs[0]}

    def chain(self, links: list[Link], readers: Mapping[Place, int]) -> Fused:
        """The chain of some instructions.

        Args:
            links: the instructions.
            readers: for each value, the number of groups and other instructions that read it; a result has one more.
        """
        steps = [step for link in links for step in link.steps]
        made = {place: k for k, (_, _, place) in enumerate(steps)}
        saves = [self._save(link.one) for link in links
                 if link.steps and isinstance(link.one, Forward) and readers[link.one.saved]]
        inputs = tuple(dict.fromkeys(k for _, taken, _ in steps for k in taken if k not in made))
        at = {place: k for k, place in enumerate((*inputs, *made))}
        own = set().union(*[link.reads() for link in links])
        saved = {k for save in saves for k in save.names.values()}
        outputs = tuple([place for place in made if place in saved or readers[place] > (place in own)])
        last = links[-1].one
        summed = last if isinstance(last, Forward) and last.rule is SUM_RULE else None
        chain = Chain(len(inputs), [(name, tuple([at[k] for k in taken])) for name, taken, _ in steps],
                      [at[place] for place in outputs], at[summed.inputs[0]] if summed else None)
        return Fused(chain, inputs, outputs, tuple(saves), self._sum(summed) if summed else None)

    def _sum(self, one: Forward) -> _Sum:
        of, after = self._forms[one.inputs[0]], self._forms[one.outputs[0]]
        assert of and after
        return _Sum(one.outputs[0], one.saved, of[0], one.attrs["axis"], after[0])

    def _save(self, one: Forward) -> _Save:
        of, known = self._rules[one.rule].of(one.attrs), self._names(one)
        forms = [self._forms[k] for k in one.inputs]
        read = {name for reads, form in zip(of.reads, forms, strict=True) if form for name in reads}
        return _Save(one.saved, of, {name: known[name] for name in read}, tuple([form and form[0] for form in forms]))


def _grouped(program: Program, links: _Links) -> Iterator[Instruction | list[Link]]:
    """The instructions, those of a chain together where its last one is. A chain has values of one shape, and ends
    before something else reads one of them.
    """
    groups: dict[Key, list[Link]] = {}

    def close_chain(key: Key) -> Instruction | list[Link]:
        group = groups.pop(key)
        return group if len(group) > 1 else group[0].one

    for one in program.instructions:
        link = links.of(one)
        if link and prod(link.key[0]) < _LEAST:
            link = None
        reads = {*one.reads(), *(link.reads() if link else ())}
        overwrites = isinstance(one, Forward) and one.attrs.get("donate")
        for key in [key for key in groups if not link or key != link.key]:
            if overwrites or not reads.isdisjoint(k for each in groups[key] for k in each.one.writes()):
                yield close_chain(key)
        is_sum = link and not link.steps
        if not link or (is_sum and reads.isdisjoint(k for each in groups.get(link.key, ()) for k in each.one.writes())):
            yield one
            continue
        if sum(len(each.steps) for each in groups.get(link.key, ())) + len(link.steps) > MOST_STEPS:
            yield close_chain(link.key)
        groups.setdefault(link.key, []).append(link)
        if is_sum:
            yield close_chain(link.key)
    for key in list(groups):
        yield close_chain(key)
