"""The record of `duoln.examples.adding`: its file, its table and its picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from duoln.data import read_json
from duoln.pictures.drawing import can_draw, figure

STYLES = {"layer": ("LSTM with layer norm", "#0072B2", "-"), "none": ("plain LSTM", "#E69F00", "--"),
          "none, forget bias 1": ("plain LSTM,\nforget bias 1", "#009E73", "-.")}
"""The name in the picture, the colour and the line style of each variant; readers who see no red or no green can tell
them apart."""
CONSTANT = 1 / 6
"""The loss of the answer 1 to every sequence: the variance of the sum of two uniform values."""
_MOST_BYTES = 1 << 20


class Run(NamedTuple):
    """One training."""

    variant: str
    rate: float
    seed: int
    purpose: Literal["choice", "result"]
    """Whether it served to choose the learning rate, or is a result."""
    seconds: float
    losses: Sequence[float]
    """Validation losses, one every `every` updates."""


class Record(NamedTuple):
    """All runs of one command."""

    backend: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]

    def results(self, variant: str) -> list[Run]:
        """The runs of a variant that are results, by seed."""
        return [run for run in self.runs if run.variant == variant and run.purpose == "result"]


def read(path: Path) -> Record:
    """A record from its file.

    Raises:
        DataError: the file is missing or damaged.
    """
    content = read_json(path, _MOST_BYTES)
    return Record(content["backend"], content["settings"], [Run(**run) for run in content["runs"]])


def table(record: Record) -> str:
    """The last validation loss of each variant: median, least and greatest over the seeds; and when it was solved."""
    updates = record.settings["updates"]
    lines = [f"The adding problem, {record.settings['length']} time steps, {record.settings['hidden']} units: mean "
             f"squared error on sequences that were not trained on,", f"after {updates} updates; the same answer to "
             f"every sequence has {CONSTANT:.3f}.", "",
             f"{'variant':20} {'rate':>6} {'seeds':>6} {'median':>9} {'least':>9} {'greatest':>9} {'s a run':>8}"]
    for variant in STYLES:
        runs = record.results(variant)
        last = [run.losses[-1] for run in runs]
        lines.append(f"{variant:20} {runs[0].rate:6g} {len(runs):6} {statistics.median(last):9.5f} {min(last):9.5f} "
                     f"{max(last):9.5f} {statistics.median(run.seconds for run in runs):8.0f}")
    return "\n".join(lines)


def write(record: Record, folder: Path) -> list[Path]:
    """Write `adding.json` and, where matplotlib is installed, `adding.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = ",\n".join(json.dumps({**run._asdict(), "seconds": round(run.seconds, 1)}) for run in record.runs)
    target = folder / "adding.json"
    target.write_text(f'{{"backend": {json.dumps(record.backend)},\n"settings": {json.dumps(dict(record.settings))},\n'
                      f'"runs": [\n{runs}\n]}}\n', encoding="utf-8")
    return [target, draw(record, folder / "adding.png")] if can_draw() else [target]


def draw(record: Record, target: Path) -> Path:
    """The picture: the validation loss of each variant along the updates, its median and its range over the seeds."""
    settings = record.settings
    with figure(target, size=(7.3, 4.0)) as (_, axes):
        [[panel]] = axes
        seeds = 0
        for variant, (label, colour, line) in STYLES.items():
            curves = list(zip(*(run.losses for run in record.results(variant)), strict=True))
            seeds = len(curves[0])
            updates = [settings["every"] * (i + 1) for i in range(len(curves))]
            medians = [statistics.median(losses) for losses in curves]
            panel.plot(updates, medians, color=colour, linestyle=line, linewidth=2)
            panel.fill_between(updates, [min(c) for c in curves], [max(c) for c in curves], color=colour, alpha=0.2,
                               linewidth=0)
            panel.annotate(label, (updates[-1], medians[-1]), xytext=(6, 0), textcoords="offset points",
                           color=colour, va="center", annotation_clip=False)
        panel.axhline(CONSTANT, color="0.45", linestyle=":", linewidth=1)
        panel.annotate("the same answer to every sequence", (settings["updates"], CONSTANT), xytext=(0, 3),
                       textcoords="offset points", color="0.35", ha="right", fontsize=9)
        panel.set(yscale="log", xlabel="updates", ylabel="mean squared error (validation)",
                  xlim=(0, settings["updates"]),
                  title=f"The adding problem, {settings['length']} time steps, {settings['hidden']} units"
                        + (f"\nmedian and range of {seeds} seeds" if seeds > 1 else "\none seed"))
        panel.title.set_fontsize(11)
        panel.spines[["top", "right"]].set_visible(False)
    return target
