"""The paper's MNIST comparison (section 6.6, figure 6): layer norm, batch norm and no norm on the same network, in batches
of 128 and of 4.

    python -m duoln.examples.mnist                   about a minute on two CPU cores
    python -m duoln.examples.mnist --seeds 3 --out examples
    duoln run mnist --preset paper --batch-size 4    60 epochs, as in the paper; can be stopped and resumed

A network of 784-1000-1000-10 units sees the training digits once in batches of 128, and the first 8,000 of them once in
batches of 4: 429 and 2,000 updates by Adam at 0.001. The paper trains for 60 epochs, up to 825,000 updates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln import runtime
from duoln.cli import console
from duoln.cli.guard import guarded
from duoln.errors import UsageError
from duoln.examples import mnist_record
from duoln.examples.mnist_record import BATCH_SIZES, STYLES, Record, Run
from duoln.tasks.events import Listener, Step
from duoln.tasks.registry import find_task
from duoln.training.train import train


class Settings(NamedTuple):
    """What all runs share."""

    hidden: int = 1000
    rate: float = 1e-3
    digits_in_small_batches: int = 8000
    points: int = 20
    """Points of a curve, each the mean training loss of as many updates."""


class Losses(Listener):
    """The training loss of every update: a run's log has those of some."""

    def __init__(self) -> None:
        self.of_updates: list[float] = []

    def on_step(self, event: Step) -> None:
        self.of_updates.append(event.loss)


def curve(of_updates: Sequence[float], points: int) -> tuple[int, list[float]]:
    """How many updates a point stands for, and the mean loss of each such part; what is left over has no point."""
    losses = np.array(of_updates)
    every = max(len(losses) // points, 1)
    whole = losses[:len(losses) // every * every].reshape(-1, every)
    return every, [float(f"{loss:.4g}") for loss in whole.mean(axis=1)]


def measure(backend: str | None, seeds: int, settings: Settings) -> Record:
    """Train each variant with each batch size from the seeds 0 to `seeds` - 1."""
    chosen, why = runtime.choose(backend)
    console.say(f"backend: {why}")
    task, runs, data = find_task("mnist"), list[Run](), ""
    for seed in range(seeds):
        for batch_size in BATCH_SIZES:
            rows = settings.digits_in_small_batches if batch_size == min(BATCH_SIZES) else None
            for variant in STYLES:
                begin = time.perf_counter()
                losses = Losses()
                display = console.ProgressDisplay(task.columns, "step", f"batch {batch_size}, {variant}")
                run = train(task, variant, backend=chosen, listeners=[display, losses], seed=seed, batch_size=batch_size, epochs=1,
                            rows=rows, hidden=settings.hidden, learning_rate=settings.rate)
                every, points = curve(losses.of_updates, settings.points)
                runs.append(Run(variant, batch_size, seed, every, time.perf_counter() - begin, points,
                                float(f"{run.figures['test_error']:.4g}")))
                data = run.dataset.label
    return Record(chosen.name, data, settings._asdict(), runs)


def main(argv: Sequence[str] | None = None, settings: Settings = Settings()) -> Record:
    """Train, print the table, write `mnist.json` and, where matplotlib is installed, `mnist.png`.

    Raises:
        UsageError: there is no seed to train from. The rest as `duoln.train`.
    """
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.mnist", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=runtime.CHOICES, help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"), metavar="DIR", help="default: runs/mnist")
    parser.add_argument("--record", type=Path, metavar="FILE", help="show this mnist.json, and train nothing")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        raise UsageError(f"[mnist] --seeds: expected at least 1, found {args.seeds}")
    record = measure(args.backend, args.seeds, settings) if args.record is None else mnist_record.read(args.record)
    print(mnist_record.table(record))
    for path in mnist_record.write(record, args.out):
        console.say(f"wrote {path}")
    return record


if __name__ == "__main__":
    sys.exit(guarded(lambda: main() and 0))
