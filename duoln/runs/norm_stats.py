"""Statistics of a run's layers: as its log has them, and of several runs as a table and as a picture."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.data.text import csv_text
from duoln.errors import DataFormatError
from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.system.filesystem import write_own

EVENT = "norm_stats"


class LayerStats(NamedTuple):
    """The statistics of one layer after some update."""

    mean: float | None
    """Mean of all numbers in the outputs of all its calls; None for a layer that was not called."""
    variance: float | None
    """Variance of the same numbers."""
    gradient_norm: float | None
    """Norm of the gradients of all its own arrays together; None for a layer without any."""


Layers = Mapping[str, LayerStats]
"""By the path of the layer in the parameters; the path of the model itself is empty."""


def entry_of(update: int, layers: Layers) -> dict[str, Any]:
    """The entry of a log."""
    return {"event": EVENT, "update": update, "layers": {
        path: {key: value for key, value in stats._asdict().items() if value is not None}
        for path, stats in layers.items()}}


def read_entry(where: str, entry: Mapping[str, Any]) -> tuple[int, dict[str, LayerStats]]:
    """The update of an entry of a log, and the statistics after it.

    Raises:
        DataFormatError: a value is missing or of another type.
    """
    try:
        layers = {path: LayerStats(*(+stats[key] if key in stats else None for key in LayerStats._fields))
                  for path, stats in entry["layers"].items()}
        return operator.index(entry["update"]), layers
    except (LookupError, TypeError, AttributeError) as error:
        raise DataFormatError(where, 0, "a whole number as update, and numbers of layers", f"{dict(entry)!r:.120}"
                              ) from error


def name_of(path: str) -> str:
    """The name of a layer in tables and pictures."""
    return path or "(model)"


def write_table(runs: Mapping[str, tuple[str, Mapping[int, Layers]]], target: Path) -> Path:
    """Write a line for each run, update and layer. A value that a layer does not have is empty.

    Args:
        runs: for the name of each run its variant, and its statistics by update.
        target: the file.

    Raises:
        CheckpointError: it cannot be written.
    """
    rows: list[Sequence[Any]] = [["run", "variant", "update", "layer", *LayerStats._fields]]
    for name, (variant, by_update) in runs.items():
        for update in sorted(by_update):
            for path, stats in by_update[update].items():
                rows.append([name, variant, update, name_of(path), *("" if x is None else x for x in stats)])
    write_own(target, csv_text(rows).encode())
    return target


# The picture --------------------------------------------------------------------------------------------

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
    paths = list(dict.fromkeys(path for by_update in runs.values() for layers in by_update.values() for path in layers))
    looks = {path: style.look(k) for k, path in enumerate(paths)}
    width = max(style.WIDTH, _COLUMN * len(runs))
    across = max(min(int(_ACROSS * width / style.WIDTH), len(paths)), 1)
    below = 0.2 * -(-len(paths) // across) + 0.1
    height = _ROW * len(_HEADINGS) + 0.3 + below
    with figure(target, len(_HEADINGS), len(runs), (width, height), sharex="col", sharey="row",
                bottom=below / height) as (whole, grid):
        for column, (name, by_update) in enumerate(runs.items()):
            for row, key in enumerate(_HEADINGS):
                _lines(grid[row][column], key, by_update, looks)
            grid[0][column].set_title(style.wrapped(name, width / len(runs) - 0.4), fontsize=style.MIDDLE, loc="left")
            grid[-1][column].set_xlabel("updates")
        for row, (key, heading) in enumerate(_HEADINGS.items()):
            _scale(grid[row], key, [value for run in runs.values() for _, value in _values(run, key, paths)])
            grid[row][0].set_ylabel(heading, fontsize=style.MIDDLE)
        handles = [grid[0][0].plot([], [], label=name_of(path), **look.marked())[0] for path, look in looks.items()]
        whole.legend(handles=handles, loc="lower center", ncol=across, fontsize=style.SMALL, frameon=False)
        whole.suptitle(style.wrapped(title, width, style.LARGE), fontsize=style.LARGE, x=0.01, ha="left")
    return target


def _values(by_update: Mapping[int, Layers], key: str, paths: Sequence[str]) -> list[tuple[int, float]]:
    """The finite values of a statistic of some layers, with their updates."""
    at = LayerStats._fields.index(key)
    values = [(update, then[path][at]) for update, then in sorted(by_update.items()) for path in paths if path in then]
    return [(update, value) for update, value in values if value is not None and math.isfinite(value)]


def _lines(axes: Any, key: str, by_update: Mapping[int, Layers], looks: Mapping[str, style.Look]) -> None:
    for path, look in looks.items():
        points = _values(by_update, key, [path])
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
