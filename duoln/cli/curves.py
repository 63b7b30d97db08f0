"""The curves of some runs as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duoln.runs.series import By, Series
    from duoln.tasks.task import Task

CURVES = ("curves.csv", "curves.png")


def write_curves(task: Task, series: Sequence[Series], out: Path, by: By = "run") -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.pictures import drawing
    from duoln.runs.curves_csv import write_csv
    from duoln.runs.curves_picture import draw

    written = [write_csv(series, out / CURVES[0], by)]
    if drawing.can_draw():
        written.append(draw(task, series, out / CURVES[1]))
    return written
