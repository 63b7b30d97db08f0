"""The results of a report as a table of a README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duoln.cli import console
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError
from duoln.runs.series import Point, Range, Series, metric
from duoln.system.visible import visible
from duoln.tasks.values import Column, split_columns

if TYPE_CHECKING:
    from duoln.tasks.task import Task

COLUMNS = 8
"""The most updates of a table over time."""


def results(task: Task, rows: Sequence[Mapping[str, Any]], told_apart: Mapping[str, Sequence[str]]) -> str:
    """A line for each row: the variant, what tells it apart, its length, and its metrics.

    Several seeds are their median, and in brackets the least and the greatest value and the number of those with NaN.
    """
    length, unit = ("steps", "updates") if task.x_axis == "step" else ("epochs", "epochs")
    metrics, _ = split_columns(task.columns)
    header = ["variant", *told_apart, "batch", unit, *(c.heading for c in metrics)]
    lines = [header, ["---"] * len(header)]
    for k, row in enumerate(rows):
        lines.append([f"`{row['variant']}`", *(cells[k] for cells in told_apart.values()), str(row["batch_size"]),
                      _in_one_line(console.count(row[length])), *(_cell(row.get(c.key), c.form) for c in metrics)])
    changes = console.changes_in(rows)
    return "\n".join([_table(lines), *(["", *changes] if changes else [])])


def over_time(task: Task, series: Sequence[Series], key: str) -> str:
    """A line for each series: one metric at up to COLUMNS of its evaluations, evenly chosen, the last one too.

    Raises:
        UsageError: no evaluation has such a metric.
    """
    points = {s.label(): s.points(metric(key, "step")) for s in series}
    steps = sorted({int(p.x) for of_series in points.values() for p in of_series})
    if not steps:
        known = sorted({k for s in series for c in s.runs for p in c.points for k in p} - {"event", "step"})
        raise UsageError(f"[report] --over: expected a metric of {', '.join(known)}; "
                         f"found {key!r}{did_you_mean(key, known)}")
    chosen = steps if len(steps) <= COLUMNS else [steps[len(steps) * (k + 1) // COLUMNS - 1] for k in range(COLUMNS)]
    column = next((c for c in task.columns if c.key == key), Column(key, key, ".4g"))
    lines = [[f"{column.heading}, after updates", *map(str, chosen)], ["---"] * (1 + len(chosen))]
    for label, of_series in points.items():
        at = {int(p.x): p for p in of_series}
        code = label.replace("`", "'")
        lines.append([f"`{code}`", *(_cell(_value(at.get(step)), column.form) for step in chosen)])
    return _table(lines)


def _value(point: Point | None) -> Any:
    if point is None or (point.low == point.high and not point.nan):
        return point and point.y
    return Range(*point[1:])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    """A cell in one line, whose bars end no cell; a code span keeps its backslash before a bar to itself."""
    return " ".join(visible(cell).split()).replace("|", "\\|")


def _cell(value: Any, form: str) -> str:
    return _in_one_line(console.number(value, form))


def _in_one_line(text: str) -> str:
    median, *spread = text.split("\n")
    return f"{median} ({', '.join(spread)})" if spread else median
