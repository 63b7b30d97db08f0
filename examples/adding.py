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

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

import duoln
from duoln import Stream, Tensor, nn, ops, optim
from duoln.data import Batch
from duoln.examples import records
from duoln.examples.records import spread
from duoln.extend import Backend
from duoln.ops.recurrent.variants import Norm
from duoln.pictures.drawing import figure
from duoln.system.paths import path_argument

VARIANTS: tuple[Norm, ...] = ("layer", "none")
CHOICE_SEED = 100
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


# The record ------------------------------------------------------------------------------------------

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
        return records.best(tried) if tried else None

    def updates_to_solve(self, run: Run) -> float:
        """The first validated update after which the loss stays below `SOLVED`; infinite if it does not."""
        above = [i for i, loss in enumerate(run.losses) if not loss < SOLVED]
        first = above[-1] + 1 if above else 0
        every: int = self.settings["every"]
        return (first + 1) * every if first < len(run.losses) else math.inf


def train(norm: Norm, rate: float, seed: int, backend: Backend, settings: Settings) -> Run:
    """Train one variant."""
    begin = time.perf_counter()
    losses = list(validations(norm, rate, seed, backend, settings))
    return Run(norm, rate, seed, seed == CHOICE_SEED, time.perf_counter() - begin, losses, records.provenance(backend))


def measure(run: Callable[..., Run], norms: Sequence[Norm], rates: Sequence[float], seeds: int,
            choose: Sequence[float], settings: Settings, out: Path) -> Record:
    """Train all variants at the rates `choose` from `CHOICE_SEED`, then at `rates` from the seeds 0 to `seeds` - 1.

    Without `rates` each is trained at the rate that was chosen for it. The record is written to `out` after every run;
    `run` is `train`, or what measures more.
    """
    backend = duoln.backend()
    record = Record(backend.name, vars(settings), [])
    first = [(CHOICE_SEED, rate) for rate in choose]
    for seed, rate in [*first, *((seed, rate) for seed in range(seeds) for rate in rates or (None,))]:
        for norm in norms:
            at = record.chosen(norm) if rate is None else rate
            assert at is not None
            record.runs.append(made := run(norm, at, seed, backend, settings))
            print(f"norm {norm}, rate {at:g}, seed {seed}: validation loss {made.losses[-1]:.5f} after "
                  f"{settings.updates} updates, {made.seconds:.0f} s", file=sys.stderr, flush=True)
            records.write(record, out)
    return record


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


def main(argv: Sequence[str] | None = None, settings: Settings = Settings()) -> Record:
    """Train, print the table, write `adding.json` and, where matplotlib is installed, `adding.png`."""
    parser = records.parser("adding", __doc__)
    parser.add_argument("--norms", choices=get_args(Norm), nargs="+", default=list(VARIANTS), metavar="NORM",
                        help="what to compare (default: layer none)")
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-3, 1e-2], metavar="RATE",
                        help="learning rates (default: 0.001 0.01); without a number the one chosen for each norm")
    parser.add_argument("--choose", type=float, nargs="+", default=[], metavar="RATE",
                        help="first choose one of these for each variant, at a seed of its own")
    parser.add_argument("--record", type=path_argument, metavar="FILE", help="show this adding.json, and train nothing")
    args = parser.parse_args(argv)
    if not args.rates and not args.choose:
        parser.error("--rates without a number needs --choose")
    out = args.out / "adding.json"
    record = (records.read(args.record, Record, Run) if args.record is not None else
              measure(train, args.norms, args.rates, args.seeds, args.choose, settings, out))
    print(table(record))
    for path in records.write(record, out, draw):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
