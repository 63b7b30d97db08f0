r"""The adding problem (Hochreiter and Schmidhuber 1997): an LSTM with layer norm and a plain one, at several rates.

    python -m duoln.examples.adding                    two learning rates, one seed: about two minutes and a half
    python -m duoln.examples.adding --seeds 5 --choose 1e-3 3e-3 1e-2 3e-2 --rates 1e-3 3e-3 1e-2 3e-2    adding.json
    python -m duoln.examples.adding --norms layer none layer-plain layer-detached rms tanh --out runs/norms \
        --choose 1e-3 3e-3 1e-2 3e-2 --rates --seeds 5    other norms, each at the rate that was chosen for it

Each time step has a value in [0, 1) and a marker. One step of the first half of a sequence is marked and one of the
second half; the target is the sum of the two marked values. The same answer 1 to every sequence has the loss 1/6.

All variants have the same number of hidden units, batches and updates, and forget gates without a bias at the start.
With `--choose` a rule that was fixed before the runs chooses a learning rate for each: of these rates the one with the
lowest validation loss after the last update, at a seed that is none of those shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

import duoln
from duoln import Stream, Tensor, nn, ops, optim
from duoln.data import Batch
from duoln.examples import adding_record, records
from duoln.examples.adding_record import Record, Run
from duoln.extend import Backend
from duoln.ops.recurrent.variants import Norm
from duoln.system.paths import path_argument


@dataclass(frozen=True)
class Settings:
    """The settings of all variants."""

    length: int = 50
    hidden: int = 64
    batch_size: int = 64
    updates: int = 3000
    every: int = 50
    """Updates between two validations."""
    validation_rows: int = 1000
    clip: float = 1.0
    """The largest global norm of a gradient."""


class Adder(nn.Module):
    """An LSTM whose last state gives the sum."""

    def __init__(self, norm: Norm, hidden: int) -> None:
        self.lstm = nn.LSTM(2, hidden, norm=norm, return_sequences=False)
        self.out = nn.Linear(hidden, 1)

    def __call__(self, params: nn.Params, x: Tensor) -> Tensor:
        last, _ = self.lstm(params["lstm"], x)
        return ops.squeeze(self.out(params["out"], last), axis=-1)


VARIANTS: tuple[Norm, ...] = ("layer", "none")
CHOICE_SEED = 100


def make_batch(stream: Stream, rows: int, length: int) -> Batch:
    """Sequences (length, rows, 2) of values and markers, and the sums (rows,) of the marked values."""
    values = stream.uniform((length, rows)).astype(np.float32)
    half, columns = length // 2, np.arange(rows)
    first = stream.child("first").integers(half, (rows,))
    second = half + stream.child("second").integers(length - half, (rows,))
    markers = np.zeros_like(values)
    markers[first, columns] = markers[second, columns] = 1
    return {"x": np.stack((values, markers), axis=-1), "sum": values[first, columns] + values[second, columns]}


def validations(norm: Norm, rate: float, seed: int, backend: Backend,
                settings: Settings) -> Iterator[float]:
    """Train one variant; yields the mean squared error on sequences that were not trained on, every some updates."""
    return (loss for loss, _ in training(Adder(norm, settings.hidden), rate, seed, backend, settings))


def error(model: Adder, params: nn.Params, batch: dict[str, Tensor]) -> Tensor:
    """The mean squared error of the sums."""
    missed = model(params, batch["x"]) - batch["sum"]
    return (missed * missed).mean()


def training(model: Adder, rate: float, seed: int, backend: Backend,
             settings: Settings) -> Iterator[tuple[float, nn.Params]]:
    """Train a model; yields the validation error and the parameters, every some updates."""
    optimizer = optim.Adam(learning_rate=rate, clip=optim.clip_global_norm(settings.clip))
    params = duoln.init(model, seed, backend)
    slots = optimizer.init(params)

    loss = partial(error, model)

    @duoln.compile
    def train_step(params: nn.Params, slots: Any, batch: dict[str, Tensor]) -> tuple[nn.Params, Any]:
        _, gradients = duoln.value_and_grad(loss)(params, batch)
        updated: tuple[nn.Params, Any] = optimizer.update(params, gradients, slots)
        return updated

    validation = make_batch(Stream(seed, "adding validation"), settings.validation_rows, settings.length)
    held_out = duoln.to_tensors(validation, backend)
    for update in range(settings.updates):
        batch = make_batch(Stream(seed, "adding", step=update), settings.batch_size, settings.length)
        params, slots = train_step(params, slots, duoln.to_tensors(batch, backend))
        if (update + 1) % settings.every == 0:
            yield float(f"{loss(params, held_out).item():.4g}"), params


def measure(rates: Sequence[float], seeds: int, choose: Sequence[float], backend: Backend,
            settings: Settings, norms: Sequence[Norm] = VARIANTS, keep: Callable[[Record], Any] = id) -> Record:
    """Train all variants at the rates `choose` from `CHOICE_SEED`, then at `rates` from the seeds 0 to `seeds` - 1.

    Without `rates` each is trained at the rate that was chosen for it. `keep` gets the record after every run.
    """
    record = Record(backend.name, vars(settings), [])
    first = [(CHOICE_SEED, rate) for rate in choose]
    for seed, rate in [*first, *((seed, rate) for seed in range(seeds) for rate in rates or (None,))]:
        for norm in norms:
            at, begin = record.chosen(norm) if rate is None else rate, time.perf_counter()
            assert at is not None
            losses = list(validations(norm, at, seed, backend, settings))
            record.runs.append(Run(norm, at, seed, seed == CHOICE_SEED, time.perf_counter() - begin, losses,
                                   records.where(backend)))
            print(f"norm {norm}, rate {at:g}, seed {seed}: validation loss {losses[-1]:.5f} after "
                  f"{settings.updates} updates, {record.runs[-1].seconds:.0f} s", file=sys.stderr, flush=True)
            keep(record)
    return record


def main(argv: Sequence[str] | None = None, settings: Settings = Settings()) -> Record:
    """Train, print the table, write `adding.json` and, where matplotlib is installed, `adding.png`."""
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.adding", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", choices=get_args(Norm), nargs="+", default=list(VARIANTS), metavar="NORM",
                        help="what to compare (default: layer none)")
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-3, 1e-2], metavar="RATE",
                        help="learning rates (default: 0.001 0.01); without a number the one chosen for each norm")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    parser.add_argument("--choose", type=float, nargs="+", default=[], metavar="RATE",
                        help="first choose one of these for each variant, at a seed of its own")
    parser.add_argument("--out", type=path_argument, default=Path("runs/adding"), metavar="DIR",
                        help="default: runs/adding")
    parser.add_argument("--record", type=path_argument, metavar="FILE", help="show this adding.json, and train nothing")
    args = parser.parse_args(argv)
    if not args.rates and not args.choose:
        parser.error("--rates without a number needs --choose")
    out = args.out / "adding.json"
    record = (records.read(args.record, Record, Run) if args.record is not None else
              measure(args.rates, args.seeds, args.choose, duoln.backend(), settings, args.norms,
                      lambda record: records.write(record, out)))
    print(adding_record.table(record))
    for path in records.write(record, out, adding_record.draw):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
