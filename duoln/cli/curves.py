"""The curves of runs of one task, read from their folders and written as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from duoln.errors import PluginError, UsageError

if TYPE_CHECKING:
    from duoln.runs.curve import Curve
    from duoln.runs.series import By, Series
    from duoln.tasks.task import Task

CURVES = ("curves.csv", "curves.png")
LAYERS = ("norm_stats.csv", "norm_stats.png")
"""Files of runs that watched the statistics of their layers."""
_BESIDE = 4
"""The most runs that one picture of the layers shows."""


def runs_of_one_task(command: str, paths: Sequence[Path], plugins: Sequence[str] | None) -> tuple[Task, list[Curve]]:
    """The runs in some folders, and their task.

    Raises:
        UsageError: they are of several tasks. The rest as `read_curves` and `find_task`.
    """
    from duoln.runs.curves import read_curves
    from duoln.tasks.registry import find_task

    curves = read_curves(paths)
    names = sorted({c.task for c in curves})
    if len(names) > 1:
        raise UsageError(f"[{command}] expected runs of one task, found {', '.join(names)}")
    return find_task(names[0], plugins), curves


def runs_by_task(paths: Sequence[Path], plugins: Sequence[str] | None) -> list[tuple[Task, list[Curve]]]:
    """The runs in some folders, by task. A task that cannot be used is made of what its runs say, with a remark.

    Raises:
        As `read_curves`.
    """
    from duoln.cli import console
    from duoln.runs.curves import read_curves
    from duoln.tasks.registry import find_task

    curves = read_curves(paths)
    by_task = []
    for name in sorted({c.task for c in curves}):
        of_task = [c for c in curves if c.task == name]
        try:
            task = find_task(name, plugins)
        except (UsageError, PluginError) as error:
            why = error if isinstance(error, PluginError) else f"task {name!r} is not installed"
            console.say(f"{why}; the figures are those of its runs, without its titles, references and pictures",
                        style="yellow")
            task = absent_task(name, of_task)
        by_task.append((task, of_task))
    return by_task


def absent_task(name: str, curves: Sequence[Curve]) -> Task:
    """A task whose plug-in is not there, as its runs describe it: its variants, and a column for each metric."""
    from duoln.runs.curve import NO_METRICS
    from duoln.tasks import Column, Task

    keys = dict.fromkeys(key for c in curves for point in c.points for key in point if key not in NO_METRICS)
    task = Task()
    task.__dict__.update(name=name, title=name, variants={c.variant: {} for c in curves},
                         columns=tuple(Column(key, key.replace("_", " "), ".4g") for key in keys))
    return task


def write_curves(task: Task, series: Sequence[Series], out: Path, by: By = "run") -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.pictures import drawing
    from duoln.runs.curves_picture import draw
    from duoln.runs.series import write_csv

    written = [write_csv(series, out / CURVES[0], by)]
    if drawing.can_draw():
        written.append(draw(task, series, out / CURVES[1]))
    return written


def write_layers(task: Task, curves: Sequence[Curve], out: Path) -> list[Path]:
    """Write `LAYERS` for the runs that have statistics of their layers, the picture only where matplotlib is installed.

    Runs that do not fit beside each other are in further pictures, such as `norm_stats-2.png`.
    """
    from duoln.pictures import drawing
    from duoln.runs import norm_stats
    from duoln.runs.series import short_names

    order = {variant: k for k, variant in enumerate(task.variants)}
    ordered = sorted(curves, key=lambda c: order.get(c.variant, len(order)))
    named = {name: c for name, c in zip(short_names([c.path for c in ordered]), ordered, strict=True) if c.layers}
    if not named:
        return []
    written = [norm_stats.write_table({name: (c.variant, c.layers) for name, c in named.items()}, out / LAYERS[0])]
    names = list(named) if drawing.can_draw() else []
    for first in range(0, len(names), _BESIDE):
        picture = out / (LAYERS[1] if not first else f"norm_stats-{first // _BESIDE + 1}.png")
        group = {name: named[name].layers for name in names[first:first + _BESIDE]}
        written.append(norm_stats.draw(f"{task.title}: statistics of the layers", group, picture))
    return written
