"""The curves of runs of one task, read from their folders and written as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from duoln.errors import UsageError

if TYPE_CHECKING:
    from duoln.runs.curve import Curve
    from duoln.runs.series import By, Series
    from duoln.tasks.task import Task

CURVES = ("curves.csv", "curves.png")
LAYERS = ("norm_stats.csv", "norm_stats.png")
"""Of runs that watched the statistics of their layers."""
_BESIDE = 4
"""The most runs that one picture of the layers shows."""


def runs_of_one_task(command: str, paths: Sequence[Path], plugins: Sequence[str] | None) -> tuple[Task, list[Curve]]:
    """The runs in some folders, and their task.

    Raises:
        UsageError: they are of several tasks. The rest as `read_curves` and `find_task`.
    """
    by_task = runs_by_task(paths, plugins)
    if len(by_task) > 1:
        raise UsageError(f"[{command}] expected runs of one task, found {', '.join(task.name for task, _ in by_task)}")
    return by_task[0]


def runs_by_task(paths: Sequence[Path], plugins: Sequence[str] | None) -> list[tuple[Task, list[Curve]]]:
    """The runs in some folders, by task. Raises as `read_curves` and `find_task`."""
    from duoln.runs.curves import read_curves
    from duoln.tasks.registry import find_task

    curves = read_curves(paths)
    return [(find_task(name, plugins), [c for c in curves if c.task == name])
            for name in sorted({c.task for c in curves})]


def write_curves(task: Task, series: Sequence[Series], out: Path, by: By = "run") -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.pictures import drawing
    from duoln.runs.curves_csv import write_csv
    from duoln.runs.curves_picture import draw

    written = [write_csv(series, out / CURVES[0], by)]
    if drawing.can_draw():
        written.append(draw(task, series, out / CURVES[1]))
    return written


def write_layers(task: Task, curves: Sequence[Curve], out: Path) -> list[Path]:
    """Write `LAYERS` for the runs that have statistics of their layers, the picture only where matplotlib is installed.

    Runs that do not fit beside each other are in further pictures, such as `norm_stats-2.png`.
    """
    from duoln.pictures import drawing
    from duoln.runs.norm_stats import write_table
    from duoln.runs.norm_stats_picture import draw
    from duoln.runs.series import short_names

    order = {variant: k for k, variant in enumerate(task.variants)}
    ordered = sorted(curves, key=lambda c: order.get(c.variant, len(order)))
    named = {name: c for name, c in zip(short_names([c.path for c in ordered]), ordered, strict=True) if c.layers}
    if not named:
        return []
    written = [write_table({name: (c.variant, c.layers) for name, c in named.items()}, out / LAYERS[0])]
    names = list(named) if drawing.can_draw() else []
    for first in range(0, len(names), _BESIDE):
        picture = out / (LAYERS[1] if not first else f"norm_stats-{first // _BESIDE + 1}.png")
        group = {name: named[name].layers for name in names[first:first + _BESIDE]}
        written.append(draw(f"{task.title}: statistics of the layers", group, picture))
    return written
