"""The record of `duoln.examples.length_and_batch`: its file, its table and its map."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import UsageError
from duoln.examples import records
from duoln.examples.adding_record import CONSTANT
from duoln.pictures.drawing import figure

LEVEL = 0.05
"""The mean squared error below which the problem counts as learnt."""
IN_A_ROW = 3
"""Validations in a row that must be below it."""
FILE = "length_and_batch.json"
_REACH = 8.0
"""The ratio, and its inverse, at which the colours of the map end."""


class Cell(NamedTuple):
    """A place of the map."""

    length: int
    batch_size: int


class Run(NamedTuple):
    """One training."""

    norm: str
    length: int
    batch_size: int
    rate: float
    seed: int
    choice: bool
    """True for a run that serves to choose the learning rate, and is no result."""
    seconds: float
    losses: Sequence[float]
    """Validation errors, one every `every` updates."""
    where: str = ""
    """The commit and the machine; empty in older records."""


class Ratio(NamedTuple):
    """The updates of the plain LSTM by those of layer norm, in one cell."""

    value: float
    """NaN if neither has learnt the problem."""
    bound: str
    """">" or "<" if only one has, else empty."""


class Record(NamedTuple):
    """All runs, and the settings that they share."""

    backend: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]
    rates: Mapping[str, float]
    """The rate of each variant in the table and the map; empty before it is chosen."""

    def has(self, cell: Cell, norm: str, rate: float, seed: int) -> bool:
        """True if this run has been made."""
        return any((run.length, run.batch_size, run.norm, run.rate, run.seed) == (*cell, norm, rate, seed)
                   for run in self.runs)

    def chosen(self, norm: str, rates: Sequence[float]) -> float:
        """The rate of these whose run for the choice ends with the lowest error."""
        ends = {run.rate: run.losses[-1] for run in self.runs if run.choice and run.norm == norm}
        return min(rates, key=lambda rate: math.inf if math.isnan(ends[rate]) else ends[rate])

    def cells(self) -> tuple[list[int], list[int]]:
        """The lengths and the batch sizes of the map."""
        runs = self._of_map()
        return sorted({run.length for run in runs}), sorted({run.batch_size for run in runs})

    def updates(self, cell: Cell, norm: str) -> list[float]:
        """The updates of each seed until the problem is learnt; infinite if it is not."""
        ends = [learnt(run.losses) for run in self._of_map() if (run.norm, run.length, run.batch_size) == (norm, *cell)]
        every: int = self.settings["every"]
        return [math.inf if end is None else end * every for end in ends]

    def ratio(self, cell: Cell) -> Ratio | None:
        """The ratio of the medians; None where a variant has not been run."""
        both = [self.updates(cell, norm) for norm in ("none", "layer")]
        if not all(both):
            return None
        plain, layer = (statistics.median_high(updates) for updates in both)
        cap: int = self.settings["updates"]
        if math.isinf(plain) and math.isinf(layer):
            return Ratio(math.nan, "")
        if math.isinf(plain):
            return Ratio(cap / layer, ">")
        return Ratio(plain / cap, "<") if math.isinf(layer) else Ratio(plain / layer, "")

    def gains(self) -> list[dict[str, Any]]:
        """For each cell and seed, the updates of the plain LSTM by those of layer norm: the least and the most that
        they can be, because one that has not learnt would need more than all updates; None is any number.
        """
        cap: int = self.settings["updates"]
        return [{"length": cell.length, "batch_size": cell.batch_size, "seed": seed, "least": min(plain, cap) / layer,
                 "most": None if math.isinf(plain) else plain / min(layer, cap)}
                for cell in itertools.starmap(Cell, itertools.product(*self.cells()))
                for seed, (plain, layer) in enumerate(zip(self.updates(cell, "none"), self.updates(cell, "layer"),
                                                          strict=False))]

    def _of_map(self) -> list[Run]:
        """The runs of the map: those of the chosen rates, without those for the choice of rates."""
        return [run for run in self.runs if self.rates.get(run.norm) == run.rate and not run.choice]


def learnt(losses: Sequence[float]) -> int | None:
    """The number of the first of `IN_A_ROW` validations in a row below `LEVEL`, from 1; None if there are none."""
    for first in range(len(losses) - IN_A_ROW + 1):
        if all(loss < LEVEL for loss in losses[first:first + IN_A_ROW]):
            return first + 1
    return None


# The file ----------------------------------------------------------------------------------------------

def opened(folder: Path, backend: str, settings: Mapping[str, Any]) -> Record:
    """The record in a folder, or an empty one.

    Raises:
        UsageError: the record's runs have other settings.
        DataError: it is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return Record(backend, settings, [], {})
    record = records.read(path, Record, Run)
    _check_settings(path, record, settings)
    return record


def joined(record: Record, path: Path) -> Record:
    """A record with the runs of another file that it has not.

    Raises:
        UsageError: the file's runs have other settings.
        DataError: it is missing or damaged.
    """
    added = records.read(path, Record, Run)
    _check_settings(path, added, record.settings)
    new = [run for run in added.runs if not record.has(Cell(run.length, run.batch_size), run.norm, run.rate, run.seed)]
    return record._replace(runs=[*record.runs, *new])


def _check_settings(path: Path, record: Record, settings: Mapping[str, Any]) -> None:
    if dict(record.settings) != dict(settings):
        raise UsageError(f"[length_and_batch] {path}: expected a record of the settings {dict(settings)}, found one of "
                         f"{dict(record.settings)}; give another --out")


# Table and map -----------------------------------------------------------------------------------------

def table(record: Record) -> str:
    """A line for each length, a column for each batch size: the ratio, and the updates of both."""
    lengths, sizes = record.cells()
    names = {"layer": "layer norm", "none": "plain"}
    rates = ", ".join(f"{rate:g} ({names[norm]})" for norm, rate in record.rates.items())
    lines = [f"Updates of a plain LSTM by those of one with layer norm, until the error is below {LEVEL} in {IN_A_ROW} "
             "validations in a row", f"(the same answer to all has {CONSTANT:.3f}); in brackets the updates of both, "
             f"plain / layer norm. At most {record.settings['updates']}", f"updates; rates: {rates}.", "",
             "".join(["length".rjust(6), *(f"batch {size}".rjust(24) for size in sizes)])]
    for length in lengths:
        lines.append("".join([str(length).rjust(6), *(_words(record, Cell(length, size)).rjust(24) for size in sizes)]))
    return "\n".join(lines)


def _words(record: Record, cell: Cell) -> str:
    ratio = record.ratio(cell)
    if ratio is None:
        return "-"
    if math.isnan(ratio.value):
        return "neither"
    both = (f"{statistics.median_high(record.updates(cell, norm)):.0f}" for norm in ("none", "layer"))
    return f"{ratio.bound}{ratio.value:.2g} ({' / '.join(both).replace('inf', 'never')})"


def draw(record: Record, target: Path) -> Path:
    """The map: colours for the ratio on a logarithmic scale, blue where layer norm needs fewer updates."""
    lengths, sizes = record.cells()
    with figure(target, size=(1.6 + 1.3 * len(sizes), 1.5 + 0.7 * len(lengths))) as (whole, axes):
        [[panel]] = axes
        values = [[_logarithm(record.ratio(Cell(length, size))) for size in sizes] for length in lengths]
        reach = math.log2(_REACH)
        image = panel.imshow(values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", origin="lower")
        for row, length in enumerate(lengths):
            for column, size in enumerate(sizes):
                value = values[row][column]
                panel.text(column, row, _words(record, Cell(length, size)).replace(" (", "\n("), ha="center",
                           va="center", fontsize=8, color="white" if abs(value) > 0.7 * reach else "0.1")
        panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        panel.set_yticks(range(len(lengths)), [str(length) for length in lengths])
        panel.set_xlabel("sequences of a mini-batch")
        panel.set_ylabel("time steps")
        panel.set_title("Updates of a plain LSTM by those with layer norm\n(of both: plain / layer norm)", fontsize=10)
        panel.spines[:].set_visible(False)
        bar = whole.colorbar(image, ax=panel)
        marks = range(-int(reach), int(reach) + 1)
        bar.set_ticks(list(marks), labels=[f"{2.0 ** mark:g}" for mark in marks])
    return target


def _logarithm(ratio: Ratio | None) -> float:
    """Base 2; NaN, which the map leaves white, where there is none."""
    return math.nan if ratio is None or math.isnan(ratio.value) else math.log2(ratio.value)
