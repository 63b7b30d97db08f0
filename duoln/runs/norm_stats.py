"""Statistics of a run's layers, as its log has them and as a table of several runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.data.csv_text import csv_text
from duoln.errors import DataFormatError
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


def entry_of(step: int, layers: Layers) -> dict[str, Any]:
    """The entry of a log."""
    return {"event": EVENT, "step": step, "layers": {
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
        return operator.index(entry["step"]), layers
    except (LookupError, TypeError, AttributeError) as error:
        raise DataFormatError(where, 0, "a whole number as step, and numbers of layers", f"{dict(entry)!r:.120}"
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
    rows: list[Sequence[Any]] = [["run", "variant", "step", "layer", *LayerStats._fields]]
    for name, (variant, by_step) in runs.items():
        for step in sorted(by_step):
            for path, stats in by_step[step].items():
                rows.append([name, variant, step, name_of(path), *("" if x is None else x for x in stats)])
    write_own(target, csv_text(rows).encode())
    return target

