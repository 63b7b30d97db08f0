"""A comparison as a picture, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path

from duoln.bench import text
from duoln.bench.compare import Comparison, Row
from duoln.pictures.drawing import figure

_ROW_INCHES = 0.34
_MICROSECONDS = 1e6


def draw(comparison: Comparison, target: Path) -> Path:
    """A bar for each case and file: microseconds a launch or run, on a logarithmic axis."""
    rows, files = comparison.rows, comparison.files
    inches = 1.6 + _ROW_INCHES * len(rows) * max(len(files), 2) / 2
    legend = (0.2 * len(files) + 0.15) / inches
    height = 0.8 / len(files)
    with figure(target, size=(9.0, inches), top=1 - legend) as (whole, panels):
        axes = panels[0][0]
        for k, file in enumerate(files):
            bars = [(i, cell) for i, row in enumerate(rows) if (cell := row.cells[k]) is not None]
            axes.barh([i + (k - (len(files) - 1) / 2) * height for i, _ in bars],
                      [cell.seconds * _MICROSECONDS for _, cell in bars], height, label=file.heading)
        axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("microseconds, median; less is better")
        axes.grid(axis="x", alpha=0.3)
        whole.legend(loc="upper center", fontsize=8)
    return target


def _label(row: Row) -> str:
    side = "" if row.case["side"] == "duoln" else f", {row.case['side']}"
    return f"{row.case['op']} {text.work(row.case)}, {row.case['cache']}{side}"
