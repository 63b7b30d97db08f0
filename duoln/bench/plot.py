"""A comparison as a picture, where matplotlib is installed."""

from __future__ import annotations

import io
from pathlib import Path

from duoln.bench import text
from duoln.bench.compare import Comparison, Row
from duoln.checkpoint import write_atomically

_ROW_INCHES = 0.34
_MICROSECONDS = 1e6


def draw(comparison: Comparison, target: Path) -> Path:
    """A bar for each case and file: microseconds a launch or run, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, files = comparison.rows, comparison.files
    figure, axes = pyplot.subplots(figsize=(9.0, 1.6 + _ROW_INCHES * len(rows) * max(len(files), 2) / 2))
    height = 0.8 / len(files)
    for k, file in enumerate(files):
        shown = [(i, cell) for i, row in enumerate(rows) if (cell := row.cells[k]) is not None]
        axes.barh([i + (k - (len(files) - 1) / 2) * height for i, _ in shown],
                  [cell.seconds * _MICROSECONDS for _, cell in shown], height, label=file.heading)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("microseconds, median; less is better")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="upper center", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.2 * len(files) + 0.15) / figure.get_figheight()))
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    pyplot.close(figure)
    write_atomically(target, content.getvalue())
    return target


def _label(row: Row) -> str:
    side = "" if row.case["side"] == "duoln" else f", {row.case['side']}"
    return f"{row.case['op']} {text.work(row.case)}, {row.case['cache']}{side}"
