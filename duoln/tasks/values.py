"""The arguments and results of a task's methods: datasets, splits, columns, curves, trained models, findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from duoln.data import Batch
from duoln.nn import Module, Params

Provenance = Literal["original", "substitute", "synthetic"]


class Dataset(NamedTuple):
    """The training data of a run.

    `provenance` is "original" (the corpus of the paper), "substitute" (a named stand-in) or "synthetic" (made by the
    program). Tables and curves of figures from data that are not the original have its label.
    """

    name: str
    provenance: Provenance

    @property
    def label(self) -> str:
        """The name, with the provenance where it is not "original"."""
        return self.name if self.provenance == "original" else f"{self.name}, {self.provenance}"


class Column(NamedTuple):
    """A column of tables: the key of a metric, a heading, and a format for `format()`."""

    key: str
    heading: str
    form: str = ".4f"
    level: str = ""
    """The key of another column with the result of a rule without training. It is printed once for all runs, and drawn
    as a horizontal line in the panel of this column."""


def split_columns(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """The columns of runs, and those that are levels of others."""
    levels = {c.level for c in columns}
    return [c for c in columns if c.key not in levels], [c for c in columns if c.key in levels]


class ReferenceCurve(NamedTuple):
    """A curve of the paper, read off its figure. It is drawn in a panel of its own beside the runs."""

    metric: str
    """The column's key."""
    variant: str
    points: Sequence[tuple[float, float]]
    """Along the task's `x_axis`."""


class ReferenceTable(NamedTuple):
    """A table of the paper, with rows that no variant of the task has too."""

    where: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Splits:
    """The data of a task.

    Attributes:
        dataset: what it is.
        train: gives the training batch of an update; a pure function of the number of the update (see
            `duoln.data.Batches`).
        steps_per_epoch: how many updates make one pass over the data.
        evaluation: whole splits by name, such as "train", "valid", "test". Those that are not "train" are held out:
            they do not depend on the seed.
        remarks: sentences that a run says in its first lines: why data were made, which share of the words is unknown.
            Empty ones are left out.
    """

    dataset: Dataset
    train: Callable[[int], Batch]
    steps_per_epoch: int
    evaluation: Mapping[str, Batch]
    remarks: Sequence[str] = ()

    def updates(self, epochs: int) -> int:
        """The updates of a run of so many epochs."""
        return epochs * self.steps_per_epoch


class Trained(NamedTuple):
    """The trained model of a run, for `Task.sample` and `Task.evaluate`."""

    config: Any
    variant: str
    update: int
    """Updates behind the parameters."""
    model: Module
    params: Params
    """Tensors on the backend that was asked for."""


class Findings(NamedTuple):
    """The results of a task's own protocol for a trained model: a table for people, figures for programs."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]
    """Lines below the table."""
    figures: Mapping[str, Any]
    """The same as plain data, for `--json`."""
