"""What an entry of the paper consists of: claims, each with the rule that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duoln.plugins.paper.findings import FindingRule
from duoln.plugins.paper.rules import RunRule


class Length(NamedTuple):
    """How long the paper trained."""

    updates: int
    source: str
    """Where that stands."""
    batch: int | None = None
    """If the paper trains with several batch sizes for equally many epochs: the batch size of these updates."""

    def at(self, batch_size: int) -> int:
        """The updates at a batch size."""
        return self.updates if self.batch is None else round(self.updates * self.batch / batch_size)


class Unmeasured(NamedTuple):
    """Stands in the place of a rule where nothing here measures the claim."""

    why: str


class Claim(NamedTuple):
    """One claim, and how it is decided."""

    text: str
    rule: RunRule | FindingRule | Unmeasured
    published: str = ""
    """The paper's figures; empty if it has none."""
    length: Length | None = None
    """Of training; None for a claim that no run decides."""
    unrun: str = ""
    """Why no run of it is kept; empty if there is one."""


class Entry(NamedTuple):
    """One figure, table, equation or passage."""

    where: str
    section: str
    shows: str
    open: str
    """What the paper leaves open or has wrong, or what cannot be repeated; empty if there is nothing."""
    claims: Sequence[Claim]
    task: str = ""
    """The task that trains it."""
    analysis: str = ""
    """The kind of `duoln analyze` that measures it."""
    curves: bool = False
    """Whether it is of curves, or of learning over time, so that ours are drawn beside it."""
