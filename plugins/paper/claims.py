"""The parts of the list of what the paper contains: entries, their claims, and the rules that decide a claim.

A rule looks at the runs of one seed, or at one finding of `duoln analyze`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from duoln.runs.curve import Curve


class Figure(NamedTuple):
    """A number on which an answer is based."""

    what: str
    who: str
    """The run that has it, or what it is of; empty if that is plain."""
    value: float | None
    """None: the run does not reach what was asked for. NaN: its evaluations cannot tell."""
    form: str


class Answer(NamedTuple):
    """An answer of a rule: whether the claim holds, None if that cannot be told, and the figures that say so."""

    holds: bool | None
    figures: Sequence[Figure]


class Role(NamedTuple):
    """A run that a rule compares: its variant, and settings that it must have."""

    variant: str
    settings: Mapping[str, Any] = {}


class RunRule(NamedTuple):
    """A rule that compares runs. They have one setting, but for what the roles name, the seed and `free`."""

    words: str
    roles: Sequence[Role]
    judge: Callable[[Sequence[Curve]], Answer | None]
    """From the runs of one seed, in the order of the roles; None if they lack a figure."""
    free: frozenset[str] = frozenset()
    """Settings in which the runs may differ."""
    whole: bool = False
    """True if only runs as long as the paper's decide."""


class FindingRule(NamedTuple):
    """A rule that reads the finding of one analysis. `answer` raises KeyError, TypeError or ValueError for another."""

    words: str
    answer: Callable[[Mapping[str, Any]], Answer]


class Length(NamedTuple):
    """The length of the paper's training."""

    updates: int
    source: str
    """The place that says so."""
    batch: int | None = None
    """If the paper trains with several batch sizes for equally many epochs: the batch size of these updates."""

    def at(self, batch_size: int) -> int:
        """The updates at a batch size."""
        return self.updates if self.batch is None else round(self.updates * self.batch / batch_size)


class Claim(NamedTuple):
    """One claim, and the rule that decides it."""

    text: str
    rule: RunRule | FindingRule | None
    """None if nothing here measures the claim."""
    published: str = ""
    """The paper's figures; empty if it has none."""
    length: Length | None = None
    """None for a claim that no run decides."""
    unmeasured: str = ""
    """The reason why there is no rule, or why no run is kept; empty if there is one."""


class Entry(NamedTuple):
    """One figure, table, equation or passage."""

    where: str
    section: str
    shows: str
    open: str
    """Remarks on what the paper leaves open or has wrong, or what cannot be repeated; empty if there is nothing."""
    claims: Sequence[Claim]
    task: str = ""
    """The task that trains it."""
    analysis: str = ""
    """The kind of `duoln analyze` that measures it."""
    curves: bool = False
    """True for curves and for learning over time: ours are drawn beside it."""


def all_hold(answers: Sequence[bool | None]) -> bool | None:
    """False if one answer is no; None if none is no and one cannot be told."""
    return False if False in answers else None if None in answers else True
