"""The statistics of runs' layers as a picture: a panel for each statistic and run, a line for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.runs.norm_stats import Layers, LayerStats, name_of

_HEADINGS = {"mean": "mean of outputs", "variance": "variance of outputs", "gradient_norm": "norm of gradient"}
_ROW, _COLUMN = 2.1, 3.2
"""Least inches of a panel with its axis."""
_ACROSS = 4
"""Names of layers side by side below the panels, at the usual width."""
_MARKS = 12
"""About the most marks of a line."""


def draw(title: str, runs: Mapping[str, Mapping[int, Layers]], target: Path) -> Path:
    """Draw the statistics of some runs beside each other; the panels of a statistic have one scale.

    The scale is logarithmic where the positive values span a ratio of ten or more; if some are 0, it is linear around
    0. That of the mean, which has both signs, is linear.

    Args:
        title: what stands above.
        runs: the statistics of each run by update, by the name of the run.
        target: the file.

    Raises:
        UsageError, CheckpointError: as `figure`.
    """
    paths = list(dict.fromkeys(path for by_step in runs.values() for layers in by_step.values() for path in layers))
    looks = {path: style.look(k) for k, path in enumerate(paths)}
    width = max(style.WIDTH, _COLUMN * len(runs))
    across = max(min(int(_ACROSS * width / style.WIDTH), len(paths)), 1)
    below = 0.2 * -(-len(paths) // across) + 0.1
    height = _ROW * len(_HEADINGS) + 0.3 + below
    with figure(target, len(_HEADINGS), len(runs), (width, height), sharex="col", sharey="row",
                bottom=below / height) as (whole, grid):
        for column, (name, by_step) in enumerate(runs.items()):
            for row, key in enumerate(_HEADINGS):
                _lines(grid[row][column], key, by_step, looks)
            grid[0][column].set_title(style.wrapped(name, width / len(runs) - 0.4), fontsize=style.MIDDLE, loc="left")
            grid[-1][column].set_xlabel("updates")
        for row, (key, heading) in enumerate(_HEADINGS.items()):
            _scale(grid[row], key, [value for by_step in runs.values() for _, value in _values(by_step, key, paths)])
            grid[row][0].set_ylabel(heading, fontsize=style.MIDDLE)
        handles = [grid[0][0].plot([], [], label=name_of(path), **look.marked())[0] for path, look in looks.items()]
        whole.legend(handles=handles, loc="lower center", ncol=across, fontsize=style.SMALL, frameon=False)
        whole.suptitle(style.wrapped(title, width, style.LARGE), fontsize=style.LARGE, x=0.01, ha="left")
    return target


def _values(by_step: Mapping[int, Layers], key: str, paths: Sequence[str]) -> list[tuple[int, float]]:
    """The finite values of a statistic of some layers, with their updates."""
    at = LayerStats._fields.index(key)
    values = [(step, by_step[step][path][at]) for step in sorted(by_step) for path in paths if path in by_step[step]]
    return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


def _lines(axes: Any, key: str, by_step: Mapping[int, Layers], looks: Mapping[str, style.Look]) -> None:
    for path, look in looks.items():
        points = _values(by_step, key, [path])
        if points:
            axes.plot(*zip(*points, strict=True), markevery=-(-len(points) // _MARKS), **look.marked())
    axes.tick_params(labelsize=style.SMALL)
    axes.grid(alpha=0.3)


def _scale(panels: Sequence[Any], key: str, values: Sequence[float]) -> None:
    positive = [value for value in values if value > 0]
    logarithmic = key != "mean" and bool(positive) and max(positive) >= 10 * min(positive)
    if logarithmic and min(values) > 0:
        panels[0].set_yscale("log")  # of one row, which shares it
    elif logarithmic:
        panels[0].set_yscale("symlog", linthresh=min(positive))
    if not logarithmic or min(values) > 0:
        style.number_axis(panels[0].yaxis, False, logarithmic)
