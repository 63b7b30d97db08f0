"""The paper's MNIST comparison (section 6.6, figure 6): layer norm, batch norm and no norm on the same network, in
batches of 128 and of 4.

    python -m duoln.examples.mnist                   about a minute on two CPU cores
    python -m duoln.examples.mnist --seeds 3 --out examples
    duoln run mnist --preset paper --batch-size 4    60 epochs, as in the paper; can be stopped and resumed

A network of 784-1000-1000-10 units sees the training digits once in batches of 128, and the first 8,000 of them once in
batches of 4: 429 and 2,000 updates by Adam at 0.001. The paper trains for 60 epochs, up to 825,000 updates.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln import runtime
from duoln.cli import console
from duoln.cli.guard import run_to_exit_code
from duoln.cli.parser import Parser
from duoln.errors import UsageError
from duoln.examples import records
from duoln.examples.records import spread
from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.plugins.mnist.task import Mnist, MnistConfig
from duoln.system.paths import path_argument
from duoln.tasks import Splits
from duoln.training.train import train

STYLES = {"none": "no norm", "bn": "batch norm", "ln": "layer norm"}
"""The variants, and their names in the picture."""
BATCH_SIZES = (128, 4)
"""The paper's."""


class Settings(NamedTuple):
    """The settings of all runs."""

    hidden: int = 1000
    rate: float = 1e-3
    digits: int | None = None
    """Training digits in batches of 128; None is all."""
    digits_in_small_batches: int = 8000
    """Training digits in batches of 4."""
    evaluated: int = 2000
    """Training digits on which the train NLL is measured, the first ones."""
    points: int = 8
    """Evaluations of each run."""


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

    def runs_of(self, variant: str, batch_size: int) -> list[Run]:
        """The runs of a variant and a batch size, one a seed."""
        return [run for run in self.runs if (run.variant, run.batch_size) == (variant, batch_size)]


class Curves(Mnist):
    """The task with an evaluation on fewer training digits, so that a curve may have several."""

    def __init__(self, evaluated: int) -> None:
        self.evaluated = evaluated

    def data(self, cfg: MnistConfig, root: Path | None = None) -> Splits:
        splits = super().data(cfg, root)
        few = {name: rows[:self.evaluated] for name, rows in splits.evaluation["train"].items()}
        return dataclasses.replace(splits, evaluation={**splits.evaluation, "train": few})


def measure(backend: str | None, seeds: int, settings: Settings) -> Record:
    """Train each variant with each batch size from the seeds 0 to `seeds` - 1."""
    chosen, why = runtime.choose(backend)
    console.say(f"backend: {why}")
    task, runs, data = Curves(settings.evaluated), list[Run](), ""
    for seed in range(seeds):
        for batch_size in BATCH_SIZES:
            rows = settings.digits_in_small_batches if batch_size == min(BATCH_SIZES) else settings.digits
            updates = task.data(MnistConfig(batch_size=batch_size, rows=rows)).steps_per_epoch
            for variant in STYLES:
                begin = time.perf_counter()
                display = console.ProgressDisplay(task.columns, "update", f"batch {batch_size}, {variant}")
                run = train(task, variant, backend=chosen, listeners=[display], seed=seed, batch_size=batch_size,
                            rows=rows, epochs=1, evaluate_every=-(-updates // settings.points),
                            hidden=settings.hidden, learning_rate=settings.rate)
                seconds, updates_at = time.perf_counter() - begin, run.curves["update"].tolist()
                losses, errors = ([float(f"{value:.4g}") for value in run.curves[key]]
                                  for key in ("train_nll", "test_error"))
                runs.append(Run(variant, batch_size, seed, seconds, updates_at, losses, errors))
                data = run.dataset.label
    return Record(chosen.name, data, settings._asdict(), runs)


def table(record: Record) -> str:
    """Train NLL at the middle and at the end of each curve, and the test error at its end, over the seeds."""
    seeds, hidden = len({run.seed for run in record.runs}), record.settings["hidden"]
    of_seeds = f"median (least to greatest) of {seeds} seeds" if seeds > 1 else "one seed"
    lines = [f"{record.data}, 784-{hidden}-{hidden}-10 units, {of_seeds}"]
    for batch_size in BATCH_SIZES:
        updates = record.runs_of(next(iter(STYLES)), batch_size)[0].updates
        half = len(updates) // 2 - 1
        heads = (f"batches of {batch_size}", *(f"train NLL, update {updates[k]}" for k in (half, -1)), "test error")
        lines += ["", _line(heads)]
        for variant, name in STYLES.items():
            runs = record.runs_of(variant, batch_size)
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
                runs = record.runs_of(variant, batch_size)
                records.draw_range(panel, runs[0].updates, [run.losses for run in runs], label=STYLES[variant],
                                   **look.marked())
            panel.set_title(f"batches of {batch_size}", fontsize=10)
            panel.set(yscale="log", xlabel="updates")
            panel.set_xlim(left=0)
            style.number_axis(panel.yaxis, percent=False, logarithmic=True)
        panels[0].set_ylabel("train NLL, nats")
        records.add_title(whole, panels[0], f"{record.data}: train NLL by update", seeds, height)
    return target


def main(argv: Sequence[str] | None = None, settings: Settings | None = None) -> Record:
    """Train, print the table, write `mnist.json` and, where matplotlib is installed, `mnist.png`.

    Raises:
        UsageError: there is no seed to train from. The rest as `duoln.tasks.train`.
    """
    parser = Parser(prog="python -m duoln.examples.mnist", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=runtime.CHOICES, help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    parser.add_argument("--out", type=path_argument, default=Path("runs/mnist"), metavar="DIR",
                        help="default: runs/mnist")
    parser.add_argument("--record", type=path_argument, metavar="FILE", help="show this mnist.json, and train nothing")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        raise UsageError(f"[mnist] --seeds: expected at least 1, found {args.seeds}")
    record = (measure(args.backend, args.seeds, settings or Settings()) if args.record is None else
              records.read(args.record, Record, Run))
    console.tell(table(record), True)
    for path in records.write(record, args.out / "mnist.json", draw):
        console.say(f"wrote {path}")
    return record


if __name__ == "__main__":
    sys.exit(run_to_exit_code(lambda: main() and 0))
