"""The parts of the list of what the paper contains: entries, their claims, and the rules that decide a claim.

A rule looks at the runs of all seeds, or at one finding of `duoln analyze`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from duoln.runs.curve import Curve


class Figure(NamedTuple):
    """A number on which an answer is based: one value of an exact computation, or one for each seed."""

    what: str
    who: str
    """The variant that has it, or what it is of; empty if that is plain."""
    values: Sequence[float]
    form: str

    def words(self, number: Callable[[Any, str], str]) -> str:
        """The median, and the range of several seeds."""
        ordered = sorted(self.values)
        median, *ends = (number(value, self.form) for value in (statistics.median(ordered), ordered[0], ordered[-1]))
        return f"{self.who} {median}".strip() + (f" ({' to '.join(ends)})" if len(ordered) > 1 else "")


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
    judge: Callable[[Sequence[Sequence[Curve]]], Answer | None]
    """From the runs of each role, one for each seed; None if they lack a figure."""
    free: frozenset[str] = frozenset()
    """Settings in which the runs may differ."""
    whole: bool = False
    """True if only runs as long as the paper's decide."""


class FindingRule(NamedTuple):
    """A rule that reads the finding of one analysis. `answer` raises KeyError, TypeError or ValueError for another."""

    words: str
    answer: Callable[[Mapping[str, Any]], Answer]
    exact: bool = True
    """False if networks are trained or drawn: then the figures have a value for each seed."""


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


def clear(ours: Sequence[float], theirs: Sequence[float]) -> bool | None:
    """True if each of our values is lower than each of theirs, False if each is greater; else the seeds overlap: None.

    Of two equal laws with five seeds each answer comes with a chance of at most 1/252, whatever the law.
    """
    return True if max(ours) < min(theirs) else False if min(ours) > max(theirs) else None
