"""A comparison as a picture, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoln.bench import text
from duoln.bench.compare import Cell, Comparison, Row
from duoln.pictures import style
from duoln.pictures.drawing import figure

_ROW_INCHES, _PANEL_INCHES, _BAR_INCHES = 0.16, 0.45, 0.16
"""Heights: of what a case needs beside its bars, of a panel's title and axis, and of a bar."""
_LINE_INCHES = 0.2
_HATCHES = ("", "//", "..", "xx", "\\\\")


def draw(comparison: Comparison, target: Path) -> Path:
    """A panel for each operator, and in it a bar for each case and file: the median, on a logarithmic axis.

    A line on each bar is from the time that a tenth of the samples is below to that which a tenth is above.
    """
    files = comparison.files
    operators: dict[str, list[Row]] = {}
    for row in comparison.rows:
        operators.setdefault(row.case["op"], []).append(row)
    heights = [_PANEL_INCHES + len(rows) * (_ROW_INCHES + _BAR_INCHES * len(files)) for rows in operators.values()]
    headings = [style.wrapped(file.heading, style.WIDTH - 1, style.SMALL) for file in files]
    legend = _LINE_INCHES * (sum(heading.count("\n") + 1 for heading in headings) + 1)
    inches = sum(heights) + legend + _PANEL_INCHES
    with figure(target, len(operators), size=(style.WIDTH, inches), top=1 - legend / inches, sharex=True,
                gridspec_kw={"height_ratios": heights}) as (whole, grid):
        for (axes,), (operator, rows) in zip(grid, operators.items(), strict=True):
            _panel(axes, rows, headings)
            axes.set_title(operator, fontsize=style.MIDDLE, loc="left")
        bottom = grid[-1][0]
        bottom.set_xscale("log")
        _name_times(bottom.xaxis)
        bottom.set_xlabel("median; the line is from 10% to 90% of the samples; less is better", fontsize=style.SMALL)
        whole.legend(*grid[0][0].get_legend_handles_labels(), loc="upper center", fontsize=style.SMALL)
    return target


def _panel(axes: Any, rows: list[Row], headings: list[str]) -> None:
    height = 0.8 / len(headings)
    for k, heading in enumerate(headings):
        bars = [(i, cell) for i, row in enumerate(rows) if (cell := row.cells[k]) is not None]
        axes.barh([i + (k - (len(headings) - 1) / 2) * height for i, _ in bars], [cell.seconds for _, cell in bars],
                  height, label=heading, color=style.look(k).colour, hatch=_HATCHES[k % len(_HATCHES)],
                  edgecolor="white", xerr=_spread([cell for _, cell in bars]),
                  error_kw={"ecolor": "0.15", "elinewidth": 1.0, "capsize": 2})
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=style.SMALL)
    axes.invert_yaxis()
    axes.tick_params(labelsize=style.SMALL)
    axes.grid(axis="x", alpha=0.3)


def _spread(cells: list[Cell]) -> list[list[float]]:
    """How far the lines go to the left and to the right of the medians."""
    return [[max(cell.seconds - cell.p10, 0.0) for cell in cells],
            [max(cell.p90 - cell.seconds, 0.0) for cell in cells]]


def _name_times(axis: Any) -> None:
    """Write times with their unit, such as 20 ms."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda seconds, _: text.duration(seconds)))
    axis.set_minor_formatter(NullFormatter())


def _label(row: Row) -> str:
    side = "" if row.case["side"] == "duoln" else f", {row.case['side']}"
    return f"{text.work(row.case)}, {row.case['cache']}{side}"
