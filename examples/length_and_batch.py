"""Layer norm at several lengths of sequences and sizes of mini-batches, on the adding problem.

    python -m duoln.examples.length_and_batch --lengths 25 50 --batches 8 32         a few minutes
    python -m duoln.examples.length_and_batch --seeds 3 --out runs/length_and_batch  the whole map: many hours

Section 7 of the paper has layer norm most useful for long sequences and small mini-batches. Here an LSTM with layer
norm and a plain one, of 64 units, learn the adding problem (see `duoln.examples.adding`) at each length and each size.
What is compared is the number of updates until they have learnt it. Shown is the plain LSTM's by that of layer norm: 2
means that layer norm needs half as many updates. If the paper is right, this ratio grows with the length, and grows as
the batch shrinks.

The rules, fixed before any run:

* Level: a run has learnt the problem at the first of three validations in a row with a mean squared error below 0.05,
  which is less than a third of 1/6, the error of the same answer to every sequence. Then it ends. A validation has 500
  sequences that were not trained on, every 50 updates.
* Cap: a run that has not learnt it after 3,000 updates (`--updates`) counts as one that never does. If only one of the
  two variants does, the ratio has a bound: the cap by that variant's updates.
* Rate: one for each variant, the same in all cells: of 0.001, 0.003, 0.01 and 0.03 (`--choose`) the one with the lowest
  validation error after the last update at length 50 and batch 32, at a seed that is none of those shown.
* Several seeds: the ratio is that of the medians of the updates.

The record is written after each run. A command that is given again goes on: what the record in `--out` has is not run
again, so it can be stopped at any time, and lengths, batches and seeds can be added.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duoln
from duoln.errors import UsageError
from duoln.examples import adding, records
from duoln.examples.adding import CHOICE_SEED, CONSTANT, VARIANTS, Settings
from duoln.extend import Backend
from duoln.ops.recurrent.variants import Norm
from duoln.pictures.drawing import figure

LEVEL = 0.05
"""The mean squared error below which the problem counts as learnt."""
IN_A_ROW = 3
"""Validations in a row that must be below it."""
FILE = "length_and_batch.json"
_REACH = 8.0
"""The ratio, and its inverse, at which the colours of the map end."""
LENGTHS = (25, 50, 100, 200, 500)
BATCHES = (2, 8, 32, 128)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SETTINGS = Settings(updates=3000, every=50, validation_rows=500)
"""The settings of all runs, but for the length and the batch size."""


class Cell(NamedTuple):
    """A place of the map."""

    length: int
    batch_size: int


CHOICE = Cell(length=50, batch_size=32)
"""The cell at which the rates are chosen."""


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
        return records.best({rate: ends[rate] for rate in rates})

    def cells(self) -> tuple[list[int], list[int]]:
        """The lengths and the batch sizes of the map."""
        runs = self._of_map()
        return sorted({run.length for run in runs}), sorted({run.batch_size for run in runs})

    def updates(self, cell: Cell, norm: str) -> list[float]:
        """The updates of each seed until the problem is learnt; infinite if it is not."""
        ends = [solved_at(run.losses) for run in self._of_map()
                if (run.norm, run.length, run.batch_size) == (norm, *cell)]
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


def solved_at(losses: Sequence[float]) -> int | None:
    """The number of the first of `IN_A_ROW` validations in a row below `LEVEL`, from 1; None if there are none."""
    for first in range(len(losses) - IN_A_ROW + 1):
        if all(loss < LEVEL for loss in losses[first:first + IN_A_ROW]):
            return first + 1
    return None


def open_record(folder: Path, backend: str, settings: Mapping[str, Any]) -> Record:
    """The record in a folder, or an empty one.

    Raises:
        UsageError: the record's runs have other settings.
        DataError: it is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return Record(backend, settings, [], {})
    record = records.read(path, Record, Run)
    if dict(record.settings) != dict(settings):
        raise UsageError(f"[length_and_batch] {path}: expected a record of the settings {dict(settings)}, found one of "
                         f"{dict(record.settings)}; give another --out")
    return record


def train(cell: Cell, norm: Norm, rate: float, seed: int, backend: Backend, settings: Settings) -> Run:
    """One run; it ends once the problem is learnt, unless it serves to choose a rate."""
    of_cell = dataclasses.replace(settings, length=cell.length, batch_size=cell.batch_size)
    choice, begin, losses = seed == CHOICE_SEED, time.perf_counter(), list[float]()
    for loss in adding.validations(norm, rate, seed, backend, of_cell):
        losses.append(loss)
        if not choice and solved_at(losses) is not None:
            break
    return Run(norm, cell.length, cell.batch_size, rate, seed, choice, round(time.perf_counter() - begin, 1), losses,
               records.provenance(backend))


def plan_runs(lengths: Sequence[int], batches: Sequence[int], seeds: int) -> Iterator[tuple[int, Cell]]:
    """The seeds and cells in their order: a whole map of one seed before the next, the quick cells first."""
    cells = [Cell(length, size) for length in lengths for size in batches]
    cells.sort(key=lambda cell: cell.length * cell.batch_size)
    return ((seed, cell) for seed in range(seeds) for cell in cells)


def measure(record: Record, out: Path, backend: Backend, plan: Iterator[tuple[int, Cell]], choose: Sequence[float],
            settings: Settings) -> Record:
    """Make the runs of a plan that the record has not; it is written to `out` after each."""
    def run(cell: Cell, norm: Norm, rate: float, seed: int) -> None:
        nonlocal record
        if record.has(cell, norm, rate, seed):
            return
        made = train(cell, norm, rate, seed, backend, settings)
        record = record._replace(runs=[*record.runs, made])
        records.write(record, out / FILE)
        end = solved_at(made.losses)
        print(f"length {cell.length}, batch {cell.batch_size}, norm {norm}, rate {rate:g}, seed {seed}: "
              f"{'not learnt' if end is None else f'learnt after {end * settings.every} updates'}, last error "
              f"{made.losses[-1]:.4f}, {made.seconds:.0f} s", file=sys.stderr, flush=True)

    for one in choose:
        for norm in VARIANTS:
            run(CHOICE, norm, one, CHOICE_SEED)
    rates: dict[str, float] = {norm: record.chosen(norm, choose) for norm in VARIANTS}
    record = record._replace(rates=rates)
    for seed, cell in plan:
        for norm in VARIANTS:
            run(cell, norm, rates[norm], seed)
    return record


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


def main(argv: Sequence[str] | None = None, settings: Settings = SETTINGS) -> Record:
    """Make the runs that are missing, print the table, write the record and, where matplotlib is installed, the map.

    Raises:
        UsageError: a length, size or number below 1, or a record of other settings. DataError: a damaged record.
    """
    parser = records.parser("length_and_batch", __doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="T", help="default: 25 to 500")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), metavar="B", help="default: 2 to 128")
    parser.add_argument("--updates", type=int, default=settings.updates, metavar="N",
                        help=f"the most updates of a run (default {settings.updates})")
    parser.add_argument("--choose", type=float, nargs="+", default=list(RATES), metavar="RATE",
                        help="the rates of which one is chosen for each variant (default: 0.001 0.003 0.01 0.03)")
    args = parser.parse_args(argv)
    least = {"--lengths": (min(args.lengths), 2), "--batches": (min(args.batches), 1), "--seeds": (args.seeds, 1),
             "--updates": (args.updates, settings.every)}
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise UsageError(f"[length_and_batch] {name}: expected at least {lowest}, found {value}")
    settings = dataclasses.replace(settings, updates=args.updates)
    backend = duoln.backend()
    record = open_record(args.out, backend.name, {key: value for key, value in vars(settings).items()
                                             if key not in Cell._fields})
    runs = plan_runs(args.lengths, args.batches, args.seeds)
    record = measure(record, args.out, backend, runs, args.choose, settings)
    print(table(record))
    for path in records.write(record, args.out / FILE, draw, summary=table(record), dataset=records.ADDING,
                              ratios=record.gains()):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
