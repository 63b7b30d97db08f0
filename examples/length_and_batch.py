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
  validation error after the last update at length 50 and batch 32, at a seed that is none of those shown. `--rate`
  takes one rate for both variants instead.
* Several seeds: the ratio is that of the medians of the updates.

The record is written after each run. A command that is given again goes on: what the record in `--out` has is not run
again, so it can be stopped at any time, and lengths, batches and seeds can be added. Two processes can share a map:
each has its own `--out` and part of the lengths, and `--add` takes over the runs of the other's record.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import duoln
from duoln.errors import UsageError
from duoln.examples import adding, length_and_batch_record as maps, records
from duoln.examples.adding import CHOICE_SEED, VARIANTS, Settings
from duoln.examples.length_and_batch_record import Cell, Record, Run
from duoln.extend import Backend
from duoln.ops.recurrent.variants import Norm
from duoln.system.paths import path_argument

LENGTHS = (25, 50, 100, 200, 500)
BATCHES = (2, 8, 32, 128)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
CHOICE = Cell(length=50, batch_size=32)
"""The cell at which the rates are chosen."""
SETTINGS = Settings(updates=3000, every=50, validation_rows=500)
"""The settings of all runs, but for the length and the batch size."""


def train(cell: Cell, norm: Norm, rate: float, seed: int, backend: Backend, settings: Settings) -> Run:
    """One run; it ends once the problem is learnt, unless it serves to choose a rate."""
    of_cell = dataclasses.replace(settings, length=cell.length, batch_size=cell.batch_size)
    choice, begin, losses = seed == CHOICE_SEED, time.perf_counter(), list[float]()
    for loss in adding.validations(norm, rate, seed, backend, of_cell):
        losses.append(loss)
        if not choice and maps.learnt(losses) is not None:
            break
    return Run(norm, cell.length, cell.batch_size, rate, seed, choice, round(time.perf_counter() - begin, 1), losses,
               records.where(backend))


def planned(lengths: Sequence[int], batches: Sequence[int], seeds: int) -> Iterator[tuple[int, Cell]]:
    """The seeds and cells in their order: a whole map of one seed before the next, the quick cells first."""
    cells = [Cell(length, size) for length in lengths for size in batches]
    cells.sort(key=lambda cell: cell.length * cell.batch_size)
    return ((seed, cell) for seed in range(seeds) for cell in cells)


def measure(record: Record, out: Path, backend: Backend, plan: Iterator[tuple[int, Cell]], choose: Sequence[float],
            rate: float | None, settings: Settings) -> Record:
    """Make the runs of a plan that the record has not; it is written to `out` after each."""
    def run(cell: Cell, norm: Norm, rate: float, seed: int) -> None:
        nonlocal record
        if record.has(cell, norm, rate, seed):
            return
        made = train(cell, norm, rate, seed, backend, settings)
        record = record._replace(runs=[*record.runs, made])
        records.write(record, out / maps.FILE)
        end = maps.learnt(made.losses)
        print(f"length {cell.length}, batch {cell.batch_size}, norm {norm}, rate {rate:g}, seed {seed}: "
              f"{'not learnt' if end is None else f'learnt after {end * settings.every} updates'}, last error "
              f"{made.losses[-1]:.4f}, {made.seconds:.0f} s", file=sys.stderr, flush=True)

    for one in choose if rate is None else ():
        for norm in VARIANTS:
            run(CHOICE, norm, one, CHOICE_SEED)
    rates: dict[str, float] = {norm: record.chosen(norm, choose) if rate is None else rate for norm in VARIANTS}
    record = record._replace(rates=rates)
    for seed, cell in plan:
        for norm in VARIANTS:
            run(cell, norm, rates[norm], seed)
    return record


def main(argv: Sequence[str] | None = None, settings: Settings = SETTINGS) -> Record:
    """Make the runs that are missing, print the table, write the record and, where matplotlib is installed, the map.

    Raises:
        UsageError: a length, size or number below 1, or a record of other settings. DataError: a damaged record.
    """
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.length_and_batch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="T", help="default: 25 to 500")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), metavar="B", help="default: 2 to 128")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    parser.add_argument("--updates", type=int, default=settings.updates, metavar="N",
                        help=f"the most updates of a run (default {settings.updates})")
    parser.add_argument("--choose", type=float, nargs="+", default=list(RATES), metavar="RATE",
                        help="the rates of which one is chosen for each variant (default: 0.001 0.003 0.01 0.03)")
    parser.add_argument("--rate", type=float, metavar="RATE", help="one rate for both variants, without a choice")
    parser.add_argument("--out", type=path_argument, default=Path("runs/length_and_batch"), metavar="DIR",
                        help="default: runs/length_and_batch")
    parser.add_argument("--add", type=path_argument, nargs="+", default=[], metavar="FILE",
                        help="take over the runs of these records")
    args = parser.parse_args(argv)
    least = {"--lengths": (min(args.lengths), 2), "--batches": (min(args.batches), 1), "--seeds": (args.seeds, 1),
             "--updates": (args.updates, settings.every)}
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise UsageError(f"[length_and_batch] {name}: expected at least {lowest}, found {value}")
    settings = dataclasses.replace(settings, updates=args.updates)
    backend = duoln.backend()
    record = maps.opened(args.out, backend.name, {key: value for key, value in vars(settings).items()
                                                     if key not in Cell._fields})
    for path in args.add:
        record = maps.joined(record, path)
    record = measure(record, args.out, backend, planned(args.lengths, args.batches, args.seeds), args.choose, args.rate,
                     settings)
    print(maps.table(record))
    for path in records.write(record, args.out / maps.FILE, maps.draw, summary=maps.table(record),
                              dataset=records.ADDING, ratios=record.gains()):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
