"""The curves of some runs as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duoln.tasks.task import Task

CURVES = ("curves.csv", "curves.png")


def write_curves(task: Task, runs: Sequence[Path], out: Path) -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.pictures import drawing
    from duoln.runs import report

    curves = report.read_curves(runs)
    written = [report.write_csv(curves, out / CURVES[0])]
    if drawing.can_draw():
        written.append(report.draw(task, curves, out / CURVES[1]))
    return written
