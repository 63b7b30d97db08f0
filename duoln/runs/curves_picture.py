"""The curves of a report as a picture, where matplotlib is installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.runs.curve import Curve
from duoln.runs.series import Point, Series, metric
from duoln.tasks.task import Task
from duoln.tasks.values import Column, split_columns

_STRETCHES = 60
"""Points of a smoothed curve."""
_TALL, _ACROSS = 5, 2
"""The most panels below each other; if a batch size has more, this many are side by side."""
_FEW = 20
"""A curve with at most this many points has a mark at each."""
_MANY = 3
"""More lines than this have their labels at their ends, and not in a legend."""
_ROW, _COLUMN = 2.3, 3.5
"""Least inches of a panel with its axis."""
_AXES = 0.72
"""About the share of a row's height that its axes have."""
_SHORT = 24
"""Letters of a label that has room at the end of its line; longer ones are a number there, and stand above."""


class Line(NamedTuple):
    """One line of a panel."""

    points: Sequence[Point]
    look: style.Look


def lines_of(task: Task, series: Sequence[Series]) -> dict[str, tuple[Series, style.Look]]:
    """Each series with its look, by its label; series of one label, such as those of two datasets, are numbered."""
    chosen = style.run_looks([s.variant for s in series], task.variants)
    lines: dict[str, tuple[Series, style.Look]] = {}
    for s, look in zip(series, chosen, strict=True):
        label, again = s.label(), 2
        while label in lines:
            label, again = f"{s.label()} #{again}", again + 1
        lines[label] = (s, look)
    return lines


def losses(curve: Curve) -> list[tuple[float, float]]:
    """Means of the training losses over parts of the run, because the losses of single batches are noisy."""
    width = max(len(curve.losses) // _STRETCHES, 1)
    stretches = [curve.losses[i:i + width] for i in range(0, len(curve.losses) - width + 1, width)]
    return [(sum(x for x, _ in part) / width, sum(y for _, y in part) / width) for part in stretches]


def draw(task: Task, series: Sequence[Series], target: Path) -> Path:
    """The curves of a task's columns, one panel a column and batch size, like the paper's figures.

    The horizontal axis is the task's: epochs, or updates with the training loss in a panel of its own. A metric that
    spans a factor of ten or more has a logarithmic axis. Several seeds of a setting are a line, the median, and a band
    from the least to the greatest value. The paper's curves, where the task has them, stand in panels to the right,
    with an axis of their own.
    """
    lines = lines_of(task, series)
    sizes = sorted({s.runs[0].config["batch_size"] for s in series}, reverse=True)
    by_update, published = task.x_axis == "update", task.reference_curves()
    metrics, levels = split_columns(task.columns)
    count = len(metrics) + by_update
    across = _ACROSS if len(sizes) == 1 and count > _TALL and not published else 1
    rows, columns = -(-count // across), len(sizes) * across + bool(published)
    width = max(style.WIDTH, _COLUMN * columns)
    names = _end_labels(lines) if len(lines) > _MANY else {}
    numbered = [f"{names[label]}: {label}" for label in lines if names.get(label, label) != label]
    top = "\n".join([style.wrapped(f"{task.title}: {task.paper}" if task.paper else task.title, width, style.LARGE),
                     *(style.wrapped(text, width, style.SMALL) for text in numbered)])
    height = _ROW * rows + 0.2 * (top.count("\n") + 2)
    with figure(target, rows, columns, (width, height), sharex="all" if across > 1 else "col") as (whole, grid):
        for place, size in enumerate(sizes):
            panels = [axes for row in grid for axes in row[place * across:(place + 1) * across]]
            group = {label: pair for label, pair in lines.items() if pair[0].runs[0].config["batch_size"] == size}
            if by_update:
                of_training = {label: Line(s.points(losses), look) for label, (s, look) in group.items()}
                _panel(panels[0], Column("", "training loss"), of_training)
                _name_ends(panels[0], of_training, names)
            for axes, column in zip(panels[int(by_update):], metrics, strict=False):
                of_metric = {label: Line(s.points(metric(column.key, task.x_axis)), look)
                             for label, (s, look) in group.items()}
                _panel(axes, column, of_metric)
                _level(axes, column, levels, [c for s, _ in group.values() for c in s.runs])
                _name_ends(axes, of_metric, names)  # at last, because a level changes the heights
            for axes in panels[count:]:
                axes.set_visible(False)
            for axes in panels[count - across:count]:
                _name_axis(axes, task)
            data = ", ".join(sorted({c.dataset.label for s, _ in group.values() for c in s.runs}))
            panels[0].set_title(style.wrapped(f"batch {size} ({data})", width / columns * across - 0.4),
                                fontsize=style.MIDDLE, loc="left")
            if not names:
                panels[0].legend(fontsize=style.SMALL)
        if published:
            taken = max((style.inches_of(name, style.SMALL) for name in names.values()), default=0.0)  # by all gaps
            _draw_published([line[-1] for line in grid[int(by_update):]], task, metrics, width / columns - taken)
            grid[0][-1].set_visible(not by_update)
        whole.suptitle(top, fontsize=style.MIDDLE if numbered else style.LARGE, x=0.01, ha="left")
    return target


def _end_labels(lines: Mapping[str, tuple[Series, style.Look]]) -> dict[str, str]:
    """The text at the end of each line: its label, or its number if a label is too long for that."""
    if max(map(len, lines)) <= _SHORT:
        return {label: label for label in lines}
    return {label: str(number) for number, label in enumerate(lines, start=1)}


def _level(axes: Any, column: Column, levels: Sequence[Column], curves: Sequence[Curve]) -> None:
    heading = next((level.heading for level in levels if level.key == column.level), "")
    value = next((p[column.level] for c in curves for p in c.points[-1:] if column.level in p), None)
    if value is not None and math.isfinite(value):
        level = axes.axhline(value, color="0.4", linestyle=":", label=heading)
        axes.legend(handles=[level], fontsize=style.SMALL)


def _draw_published(panels: Sequence[Any], task: Task, metrics: Sequence[Column], width: float) -> None:
    """The paper's curves, each metric beside ours; a panel without a curve of the paper stays empty."""
    chosen = style.looks([*task.variants, *(c.variant for c in task.reference_curves())])
    for axes, column in zip(panels, metrics, strict=True):
        lines = {c.variant: Line([Point(x, y, y, y) for x, y in c.points], chosen[c.variant])
                 for c in task.reference_curves() if c.metric == column.key}
        axes.set_visible(bool(lines))
        if lines:
            names = {label: label for label in lines} if len(lines) > _MANY else {}
            _panel(axes, column, lines)
            _name_ends(axes, lines, names)
            title = f"the paper's ({task.paper}), read off" if task.paper else "the reference, read off"
            axes.set_title(style.wrapped(title, width - 0.4), fontsize=style.MIDDLE, loc="left")
            axes.locator_params(axis="x", nbins=5)
            _name_axis(axes, task)
            if not names:
                axes.legend(fontsize=style.SMALL)


def _name_axis(axes: Any, task: Task) -> None:
    """Name the horizontal axis; where it has several epochs, no tick is at a part of one."""
    axes.set_xlabel("updates" if task.x_axis == "update" else "epoch")
    axes.tick_params(axis="x", labelbottom=True)
    if task.x_axis == "epoch" and axes.get_xlim()[1] > 1:
        axes.locator_params(axis="x", integer=True)


def _panel(axes: Any, column: Column, lines: Mapping[str, Line]) -> None:
    values = [y for line in lines.values() for p in line.points for y in (p.low, p.high) if math.isfinite(y)]
    for label, (points, look) in lines.items():
        places = [p.x for p in points]
        marked = look.marked() if len(points) < _FEW else look.line()
        axes.plot(places, [p.y for p in points], label=style.wrapped(label, style.WIDTH / 2), **marked)
        if any(p.low < p.high for p in points):
            axes.fill_between(places, [p.low for p in points], [p.high for p in points], color=look.colour, alpha=0.2,
                              linewidth=0)
    logarithmic = bool(values) and 0 < 10 * min(values) <= max(values)
    if logarithmic:
        axes.set_yscale("log")
    style.number_axis(axes.yaxis, column.form.endswith("%"), logarithmic)
    axes.tick_params(labelsize=style.SMALL)
    axes.set_ylabel(column.heading, fontsize=style.MIDDLE)
    axes.grid(alpha=0.3)


def _name_ends(axes: Any, lines: Mapping[str, Line], end_labels: Mapping[str, str]) -> None:
    """Name each line at its last finite point; a line that goes on with NaN or infinity says so there."""
    ends = {}
    for label, line in lines.items():
        drawn = [p for p in line.points if math.isfinite(p.y)]
        if label in end_labels and drawn:
            goes_on = "" if drawn[-1] == line.points[-1] else f", then {line.points[-1].y:g}"
            ends[end_labels[label] + goes_on] = (drawn[-1].x, drawn[-1].y)
    style.label_ends(axes, ends, _ROW * _AXES)
