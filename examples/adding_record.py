"""The record of `duoln.examples.adding`: its file, its table and its picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.examples import records
from duoln.examples.records import spread
from duoln.pictures.drawing import figure

STYLES = {"layer": ("layer norm", "#0072B2", "-"), "none": ("plain LSTM", "#E69F00", "--"),
          "layer-plain": ("without gain and bias", "#56B4E9", ":"),
          "layer-detached": ("statistics without gradient", "#D55E00", "-."),
          "rms": ("RMS norm", "#009E73", (0, (5, 1))), "tanh": ("tanh", "#CC79A7", (0, (1, 1)))}
"""The name in the picture, the colour and the line style of each variant; readers who see no red or no green can tell
them apart."""
CONSTANT = 1 / 6
"""The loss of the answer 1 to every sequence: the variance of the sum of two uniform values."""
SOLVED = 0.01
"""A validation loss below this one counts as solved: the error is then a tenth of a value."""


class Run(NamedTuple):
    """One training."""

    norm: str
    rate: float
    seed: int
    choice: bool
    """True for a run that serves to choose the learning rate, and is no result."""
    seconds: float
    losses: Sequence[float]
    """Validation losses, one every `every` updates."""
    where: str = ""
    """The commit and the machine; empty in older records."""
    errors: Mapping[str, float | None] = {}
    """The mean squared error by the length of test sequences, where it was measured; None is not finite."""


class Record(NamedTuple):
    """All runs of one command."""

    backend: str
    settings: Mapping[str, Any]
    runs: list[Run]

    def rates(self) -> list[float]:
        """The learning rates of the results, in order."""
        return sorted({run.rate for run in self.runs if not run.choice})

    def results(self, norm: str, rate: float) -> list[Run]:
        """The runs that are results, one a seed."""
        return [run for run in self.runs if (run.norm, run.rate, run.choice) == (norm, rate, False)]

    def chosen(self, norm: str) -> float | None:
        """The rate whose run for the choice ends with the lowest loss; None if there was no choice."""
        tried = {run.rate: run.losses[-1] for run in self.runs if run.norm == norm and run.choice}
        return min(tried, key=lambda rate: math.inf if math.isnan(tried[rate]) else tried[rate]) if tried else None

    def updates_to_solve(self, run: Run) -> float:
        """The first validated update after which the loss stays below `SOLVED`; infinite if it does not."""
        above = [i for i, loss in enumerate(run.losses) if not loss < SOLVED]
        first = above[-1] + 1 if above else 0
        every: int = self.settings["every"]
        return (first + 1) * every if first < len(run.losses) else math.inf


def table(record: Record) -> str:
    """Each variant at each rate: the last validation loss and the updates until it stays solved, over the seeds."""
    settings = record.settings
    norms = [norm for norm in STYLES if any(run.norm == norm for run in record.runs)]
    wide = max(6, *map(len, norms))
    third = max(len(record.runs[0].losses) // 3, 1)
    early, last = f"after {third * settings['every']} updates", f"after {settings['updates']} updates"
    lines = [f"The adding problem, {settings['length']} time steps, {settings['hidden']} units: mean squared error on "
             f"sequences that were not trained on,",
             f"median (least to greatest) of the seeds; the same answer to every sequence has {CONSTANT:.3f}.", "",
             f"{'rate':>6}  {'norm':{wide}} {'seeds':>5}  {early:30}{last:30}updates until it stays below {SOLVED}"]
    for rate in record.rates():
        for norm in (norm for norm in norms if record.results(norm, rate)):
            runs = record.results(norm, rate)
            mark = "  chosen" if record.chosen(norm) == rate else ""
            solved = spread([record.updates_to_solve(run) for run in runs], ".0f").replace("inf", "never")
            losses = "".join(f"{spread([run.losses[k] for run in runs], '.5f'):30}" for k in (third - 1, -1))
            lines.append(f"{rate:6g}  {norm:{wide}} {len(runs):5}  {losses}{solved}{mark}")
    return "\n".join(lines)


def draw(record: Record, target: Path) -> Path:
    """The picture: a panel for each rate with the validation losses, their median and their range over the seeds."""
    rates, settings = record.rates(), record.settings
    columns = len(rates) if len(rates) <= 3 else 2
    rows = -(-len(rates) // columns)
    height = 0.8 + 2.6 * rows
    with figure(target, rows, columns, size=(7.3, height), top=1 - 0.55 / height, sharex=True,
                sharey=True) as (whole, grid):
        panels = [panel for line in grid for panel in line]
        for panel in panels[len(rates):]:
            panel.set_visible(False)
        for panel, rate in zip(panels, rates, strict=False):
            _panel(panel, record, rate)
        for panel in panels[max(len(rates) - columns, 0):len(rates)]:
            panel.set_xlabel("updates")
            panel.tick_params(labelbottom=True)
        title = f"The adding problem, {settings['length']} time steps: validation error of an LSTM"
        records.add_title(whole, panels[0], title, len({run.seed for run in record.runs if not run.choice}), height)
    return target


def _panel(panel: Any, record: Record, rate: float) -> None:
    styles = {norm: style for norm, style in STYLES.items() if record.results(norm, rate)}
    for norm, (label, colour, line) in styles.items():
        losses = [run.losses for run in record.results(norm, rate)]
        updates = [record.settings["every"] * (k + 1) for k in range(len(losses[0]))]
        records.draw_range(panel, updates, losses, color=colour, linestyle=line, label=label)
    panel.axhline(CONSTANT, color="0.45", linestyle=":", linewidth=1, label="one answer to all")
    names = [label for norm, (label, _, _) in styles.items() if record.chosen(norm) == rate]
    both = len(names) == len(styles) == 2
    chosen = f"\nchosen for {'both' if both else ', '.join(names)}" if names else ""
    panel.set_title(f"learning rate {rate:g}{chosen}", fontsize=10)
    panel.set(yscale="log", xlim=(0, record.settings["updates"]))
    panel.set_ylabel("mean squared error" if panel.get_subplotspec().is_first_col() else "")
