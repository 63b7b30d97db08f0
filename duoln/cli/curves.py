"""The curves of some runs as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duoln.tasks.spec import Task


def write_curves(task: Task, runs: Sequence[Path], out: Path) -> list[Path]:
    """Write curves.csv, and curves.png where matplotlib is installed."""
    from duoln import pictures, report

    curves = report.read_curves(runs)
    written = [report.write_csv(curves, out / "curves.csv")]
    if pictures.can_draw():
        written.append(report.draw(task, curves, out / "curves.png"))
    return written
