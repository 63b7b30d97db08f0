"""The record of `duoln.examples.mnist`: its file, its table and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.examples import records
from duoln.examples.records import spread
from duoln.pictures import style
from duoln.pictures.drawing import figure

STYLES = {"none": "no norm", "bn": "batch norm", "ln": "layer norm"}
"""The variants, and their names in the picture."""
BATCH_SIZES = (128, 4)
"""The paper's."""


class Run(NamedTuple):
    """One training."""

    variant: str
    batch_size: int
    seed: int
    seconds: float
    updates: Sequence[int]
    """The number of updates before each evaluation."""
    losses: Sequence[float]
    """Train NLL, in nats, of each evaluation: batch norm by the statistics of a population."""
    errors: Sequence[float]
    """Test error of each evaluation, the share of the digits."""


class Record(NamedTuple):
    """All runs of one command."""

    backend: str
    data: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]

    def of(self, variant: str, batch_size: int) -> list[Run]:
        """The runs of a variant and a batch size, one a seed."""
        return [run for run in self.runs if (run.variant, run.batch_size) == (variant, batch_size)]


def table(record: Record) -> str:
    """Train NLL at the middle and at the end of each curve, and the test error at its end, over the seeds."""
    seeds, hidden = len({run.seed for run in record.runs}), record.settings["hidden"]
    of_seeds = f"median (least to greatest) of {seeds} seeds" if seeds > 1 else "one seed"
    lines = [f"{record.data}, 784-{hidden}-{hidden}-10 units, {of_seeds}"]
    for batch_size in BATCH_SIZES:
        updates = record.of(next(iter(STYLES)), batch_size)[0].updates
        half = len(updates) // 2 - 1
        heads = (f"batches of {batch_size}", *(f"train NLL, update {updates[k]}" for k in (half, -1)), "test error")
        lines += ["", _line(heads)]
        for variant, name in STYLES.items():
            runs = record.of(variant, batch_size)
            lines.append(_line((name, *(spread([run.losses[k] for run in runs], ".3f") for k in (half, -1)),
                                spread([100 * run.errors[-1] for run in runs], ".1f") + " %")))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, (16, 26, 26, 0), strict=True))


def draw(record: Record, target: Path) -> Path:
    """The picture: the train NLL by update, a panel for each batch size; the median of the seeds and their range."""
    seeds = len({run.seed for run in record.runs})
    height = 3.4
    with figure(target, 1, len(BATCH_SIZES), size=(style.WIDTH, height), top=1 - 0.55 / height,
                sharey=True) as (whole, [panels]):
        for panel, batch_size in zip(panels, BATCH_SIZES, strict=True):
            for variant, look in style.looks(STYLES).items():
                runs = record.of(variant, batch_size)
                records.draw_range(panel, runs[0].updates, [run.losses for run in runs], label=STYLES[variant],
                                   **look.marked())
            panel.set_title(f"batches of {batch_size}", fontsize=10)
            panel.set(yscale="log", xlabel="updates")
            panel.set_xlim(left=0)
            style.number_axis(panel.yaxis, percent=False, logarithmic=True)
        panels[0].set_ylabel("train NLL, nats")
        records.add_title(whole, panels[0], f"{record.data}: train NLL by update", seeds, height)
    return target
