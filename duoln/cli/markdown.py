"""The results of a report as a table of a README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duoln.cli import console
from duoln.tasks.values import split_columns

if TYPE_CHECKING:
    from duoln.tasks.task import Task


def results(task: Task, rows: Sequence[Mapping[str, Any]], told_apart: Mapping[str, Sequence[str]]) -> str:
    """A line for each row: the variant, what tells it apart, its length, and its metrics.

    Several seeds are their median, and the least and the greatest value in brackets.
    """
    length, unit = ("steps", "updates") if task.x_axis == "step" else ("epochs", "epochs")
    metrics, _ = split_columns(task.columns)
    header = ["variant", *told_apart, "batch", unit, *(c.heading for c in metrics)]
    lines = [header, ["---"] * len(header)]
    for k, row in enumerate(rows):
        lines.append([f"`{row['variant']}`", *(cells[k] for cells in told_apart.values()), str(row["batch_size"]),
                      console.count(row[length]), *(_cell(row.get(c.key), c.form) for c in metrics)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any, form: str) -> str:
    median, *spread = console.number(value, form).split("\n")
    return f"{median} ({spread[0]})" if spread else median
