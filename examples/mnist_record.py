"""The record of `duoln.examples.mnist`: its file, its table and its picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.data import read_json
from duoln.examples.adding_record import spread
from duoln.pictures import style
from duoln.pictures.drawing import can_draw, figure
from duoln.system.filesystem import make_folder, write_own

STYLES = {"none": "no norm", "bn": "batch norm", "ln": "layer norm"}
"""The variants, and their names in the picture."""
BATCH_SIZES = (128, 4)
"""The paper's."""
_MOST_BYTES = 1 << 20


class Run(NamedTuple):
    """One training."""

    variant: str
    batch_size: int
    seed: int
    seconds: float
    updates: Sequence[int]
    """After how many updates each evaluation was made."""
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


def read(path: Path) -> Record:
    """A record from its file.

    Raises:
        DataError: the file is missing or damaged.
    """
    content = read_json(path, _MOST_BYTES)
    return Record(**{**content, "runs": [Run(**run) for run in content["runs"]]})


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


def write(record: Record, folder: Path) -> list[Path]:
    """Write `mnist.json` and, where matplotlib is installed, `mnist.png`."""
    make_folder(folder)
    runs = ",\n".join(json.dumps({**run._asdict(), "seconds": round(run.seconds, 1)}) for run in record.runs)
    target = folder / "mnist.json"
    head = json.dumps({key: value for key, value in record._asdict().items() if key != "runs"})
    write_own(target, f'{head[:-1]},\n"runs": [\n{runs}\n]}}\n'.encode())
    return [target, draw(record, folder / "mnist.png")] if can_draw() else [target]


def draw(record: Record, target: Path) -> Path:
    """The picture: the train NLL by update, a panel for each batch size; the median of the seeds and their range."""
    seeds = len({run.seed for run in record.runs})
    height = 3.4
    with figure(target, 1, len(BATCH_SIZES), size=(style.WIDTH, height), top=1 - 0.55 / height,
                sharey=True) as (whole, [panels]):
        for panel, batch_size in zip(panels, BATCH_SIZES, strict=True):
            for variant, look in style.looks(STYLES).items():
                _curve(panel, record.of(variant, batch_size), STYLES[variant], look)
            panel.set_title(f"batches of {batch_size}", fontsize=10)
            panel.set(yscale="log", xlabel="updates")
            panel.set_xlim(left=0)
            panel.spines[["top", "right"]].set_visible(False)
            style.number_axis(panel.yaxis, percent=False, logarithmic=True)
        panels[0].set_ylabel("train NLL, nats")
        whole.legend(*panels[0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False,
                     bbox_to_anchor=(0.5, 1 - 0.22 / height))
        title = whole.suptitle(f"{record.data}: train NLL by update, "
                               + (f"median and range of {seeds} seeds" if seeds > 1 else "one seed"), fontsize=11)
        title.set_in_layout(False)  # `top` has left the room for it
    return target


def _curve(panel: Any, runs: Sequence[Run], label: str, look: style.Look) -> None:
    updates, losses = runs[0].updates, list(zip(*(run.losses for run in runs), strict=True))
    panel.plot(updates, [statistics.median(each) for each in losses], linewidth=2, label=label, **look.marked())
    panel.fill_between(updates, [min(each) for each in losses], [max(each) for each in losses], color=look.colour,
                       alpha=0.2, linewidth=0)
