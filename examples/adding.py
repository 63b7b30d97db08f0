"""The adding problem (Hochreiter and Schmidhuber 1997): layer norm in an LSTM, beside the plain LSTM.

    python -m duoln.examples.adding                            one seed, about two minutes on two CPU cores
    python -m duoln.examples.adding --choose --seeds 5         what is recorded in examples/adding.json

Each time step has a value in [0, 1) and a marker. One step of the first half of a sequence is marked and one of the
second half; the target is the sum of the two marked values. The same answer 1 to every sequence has the loss 1/6.

All variants have the same number of hidden units, batches and updates. The learning rate of each is chosen by one
rule, fixed before the runs: of `RATES`, the one with the lowest validation loss after the last update, at a seed that
is none of those shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import duoln
from duoln import Tensor, nn, ops, optim
from duoln.data import Batch
from duoln.examples import adding_record
from duoln.examples.adding_record import Record, Run
from duoln.extend import Backend
from duoln.randomness import Stream


@dataclass(frozen=True)
class Settings:
    """What all variants share."""

    length: int = 50
    hidden: int = 64
    batch_size: int = 64
    updates: int = 3000
    every: int = 50
    """Updates between two validations."""
    validation_rows: int = 1000
    clip: float = 1.0
    """The largest global norm of a gradient."""


class Variant(nn.Module):
    """An LSTM whose last state gives the sum."""

    def __init__(self, norm: Literal["none", "layer"], forget_bias: float, hidden: int) -> None:
        self.lstm = nn.LSTM(2, hidden, norm=norm, forget_bias=forget_bias, return_sequences=False)
        self.out = nn.Linear(hidden, 1)

    def __call__(self, params: nn.Params, x: Tensor) -> Tensor:
        last, _ = self.lstm(params["lstm"], x)
        return ops.squeeze(self.out(params["out"], last), axis=-1)


VARIANTS: dict[str, tuple[Literal["none", "layer"], float]] = {
    "layer": ("layer", 0.0), "none": ("none", 0.0), "none, forget bias 1": ("none", 1.0)}
"""The norm, and the forget gate's bias at the start, by the name in tables. A bias of 1 is a usual choice for the plain
LSTM."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
CHOICE_SEED = 100
CHOSEN = {"layer": 1e-3, "none": 1e-3, "none, forget bias 1": 1e-3}
"""The learning rates by the rule above, from the record."""


def make_batch(stream: Stream, rows: int, length: int) -> Batch:
    """Sequences (length, rows, 2) of values and markers, and the sums (rows,) of the marked values."""
    values = stream.uniform((length, rows)).astype(np.float32)
    half, columns = length // 2, np.arange(rows)
    first = stream.child("first").integers(half, (rows,))
    second = half + stream.child("second").integers(length - half, (rows,))
    markers = np.zeros_like(values)
    markers[first, columns] = markers[second, columns] = 1
    return {"x": np.stack((values, markers), axis=-1), "sum": values[first, columns] + values[second, columns]}


def train(variant: str, rate: float, seed: int, backend: Backend, settings: Settings) -> list[float]:
    """Train one variant; the mean squared error on sequences that were not trained on, every some updates."""
    norm, forget_bias = VARIANTS[variant]
    model = Variant(norm, forget_bias, settings.hidden)
    optimizer = optim.Adam(learning_rate=rate, clip=optim.clip_global_norm(settings.clip))
    params = duoln.to_tensors(model.init(seed), backend)
    slots = optimizer.init(params)

    def loss(params: nn.Params, batch: dict[str, Tensor]) -> Tensor:
        error = model(params, batch["x"]) - batch["sum"]
        return (error * error).mean()

    @duoln.compile
    def train_step(params: nn.Params, slots: Any, batch: dict[str, Tensor], rate: Tensor) -> tuple[nn.Params, Any]:
        _, gradients = duoln.value_and_grad(loss)(params, batch)
        updated: tuple[nn.Params, Any] = optimizer.update(params, gradients, slots, rate)
        return updated

    validation = make_batch(Stream(seed, "adding validation"), settings.validation_rows, settings.length)
    held_out, losses = duoln.to_tensors(validation, backend), []
    for update in range(settings.updates):
        batch = make_batch(Stream(seed, "adding", step=update), settings.batch_size, settings.length)
        params, slots = train_step(params, slots, duoln.to_tensors(batch, backend),
                                   duoln.tensor(optimizer.rate_at(update), backend))
        if (update + 1) % settings.every == 0:
            losses.append(float(f"{loss(params, held_out).item():.4g}"))
    return losses


def measure(seeds: int, choose: bool, backend: Backend, settings: Settings) -> Record:
    """Train every variant from some seeds, with the chosen rates or, if `choose`, after the choice by the rule."""
    runs: list[Run] = []

    def run(variant: str, rate: float, seed: int, purpose: Literal["choice", "result"]) -> Run:
        begin = time.perf_counter()
        losses = train(variant, rate, seed, backend, settings)
        runs.append(Run(variant, rate, seed, purpose, time.perf_counter() - begin, losses))
        print(f"{variant}, rate {rate:g}, seed {seed}: validation loss {losses[-1]:.5f} after {settings.updates} "
              f"updates, {runs[-1].seconds:.0f} s", file=sys.stderr, flush=True)
        return runs[-1]

    chosen = dict(CHOSEN)
    if choose:
        for variant in VARIANTS:
            chosen[variant] = min((run(variant, rate, CHOICE_SEED, "choice") for rate in RATES),
                                  key=lambda tried: np.nan_to_num(tried.losses[-1], nan=np.inf)).rate
    for seed in range(seeds):
        for variant in VARIANTS:
            run(variant, chosen[variant], seed, "result")
    return Record(backend.name, vars(settings), runs)


def main(argv: Sequence[str] | None = None, settings: Settings = Settings()) -> Record:
    """Train, print the table, write `adding.json` and, where matplotlib is installed, `adding.png`."""
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.adding", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    parser.add_argument("--choose", action="store_true", help="choose the learning rates first")
    parser.add_argument("--out", type=Path, default=Path("runs/adding"), metavar="DIR", help="default: runs/adding")
    parser.add_argument("--record", type=Path, metavar="FILE", help="show this adding.json, and train nothing")
    args = parser.parse_args(argv)
    record = adding_record.read(args.record) if args.record else measure(args.seeds, args.choose, duoln.backend(),
                                                                         settings)
    print(adding_record.table(record))
    for path in adding_record.write(record, args.out):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
