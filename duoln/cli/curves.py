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


def write_curves(task: Task, series: Sequence[Series], out: Path, by: By = "run") -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.pictures import drawing
    from duoln.runs.curves_csv import write_csv
    from duoln.runs.curves_picture import draw

    written = [write_csv(series, out / CURVES[0], by)]
    if drawing.can_draw():
        written.append(draw(task, series, out / CURVES[1]))
    return written
