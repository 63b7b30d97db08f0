"""The picture of the timing page: duoln's time over PyTorch's, for each work and machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.bench.machines import Range, Work
from duoln.pictures import style
from duoln.pictures.drawing import figure

_PANELS = {
    "beside the same in PyTorch": ("torch", "torch loop"),
    "beside PyTorch's fused Adam and plain layers": (
        "torch-fused", "torch.nn.LSTM, no norm", "torch.nn.GRU, no norm")}
_ROW_INCHES, _PANEL_INCHES, _LINE_INCHES, _LEGEND_INCHES = 0.21, 0.55, 0.2, 0.05
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
_SPREAD = 0.7
"""The share of a row's height in which its machines lie above each other."""


def draw(machines: Mapping[str, Sequence[Work]], target: Path) -> Path:
    """A panel for each kind of peer, a row for each work, a line from the least to the largest ratio of each machine.

    Raises:
        UsageError: matplotlib is not installed, or the name is no picture's.
    """
    panels = {title: _rows(machines, sides) for title, sides in _PANELS.items()}
    panels = {title: rows for title, rows in panels.items() if rows}
    heights = [_PANEL_INCHES + _ROW_INCHES * len(rows) for rows in panels.values()]
    legend = _LINE_INCHES * -(-len(machines) // 2) + _LEGEND_INCHES
    inches = sum(heights) + legend
    with figure(target, len(panels), size=(style.WIDTH, inches), top=1 - legend / inches, sharex=True,
                gridspec_kw={"height_ratios": heights}) as (whole, grid):
        for (axes,), (title, rows) in zip(grid, panels.items(), strict=True):
            _panel(axes, title, rows, list(machines))
        grid[-1][0].set_xlabel("duoln's time / PyTorch's, in the same run; less is better", fontsize=style.SMALL)
        handles = [_mark(grid[0][0], k, [], [], label=name) for k, name in enumerate(machines)]
        whole.legend(handles=handles, loc="upper center", ncols=2, fontsize=style.SMALL)
    return target


def _rows(machines: Mapping[str, Sequence[Work]], sides: Sequence[str]) -> dict[str, dict[str, Range]]:
    """The ratio of each machine for each work that has been measured beside one of these sides."""
    rows: dict[str, dict[str, Range]] = {}
    for machine, works in machines.items():
        for work in works:
            for side in sides:
                if side in work.ratios:
                    rows.setdefault(work.name, {})[machine] = work.ratios[side]
    return rows


def _panel(axes: Any, title: str, rows: Mapping[str, Mapping[str, Range]], machines: Sequence[str]) -> None:
    step = _SPREAD / max(len(machines), 1)
    for place, ratios in enumerate(rows.values()):
        for machine, ratio in ratios.items():
            k = machines.index(machine)
            height = place + (k - (len(machines) - 1) / 2) * step
            _mark(axes, k, list(ratio), [height, height])
    axes.axvline(1.0, color="0.3", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), list(rows), fontsize=style.SMALL)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(labelsize=style.SMALL)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title, fontsize=style.MIDDLE, loc="left")


def _mark(axes: Any, k: int, x: list[float], y: list[float], label: str | None = None) -> Any:
    look = style.look(k)
    [line] = axes.plot(x, y, color=look.colour, marker=look.marker, markersize=3.5, linewidth=1.5, label=label)
    return line
