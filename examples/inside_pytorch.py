"""A language model of characters inside PyTorch: what the exchange of its LSTM gains, in seconds.

    python -m duoln.examples.inside_pytorch TEXT --json FILE

Two layers, trained by PyTorch's AdamW with the LSTM of `duoln.bridge.torch` with layer norm, with a loop over LN-LSTM
cells, and with `torch.nn.LSTM`, which has no norm. TEXT is a file of plain text, also gzipped. The last twentieth of
its characters validates.

The rule, which was written before the runs: each side trains with seed 0 at each of four rates; its rate is that with
the lowest last validation loss; with it come the other seeds. Sides take turns, and seconds are those of its updates
alone. FILE gets the record, and beside it the picture.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln.bench.language_model import LanguageModel, Sizes
from duoln.errors import UsageError
from duoln.examples import records
from duoln.pictures.drawing import figure

SIDES = {"cells": ("layer norm, a loop over cells", "#D55E00", ":"), "bridge": ("layer norm, duoln", "#0072B2", "-"),
         "plain": ("no norm, nn.LSTM", "#E69F00", "--")}
"""The name in the picture, the colour and the line style of each side."""
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
SEEDS = 3


class Run(NamedTuple):
    """One training."""

    side: str
    rate: float
    seed: int
    seconds: float
    losses: Sequence[float]
    """Validation losses, one every `every` updates, the first before them."""


class Record(NamedTuple):
    """All runs of one command."""

    settings: dict[str, Any]
    runs: Sequence[Run]

    def results(self, side: str) -> list[Run]:
        """The runs of a side at its rate, one a seed."""
        tried = {run.rate: run.losses[-1] for run in self.runs if run.side == side and run.seed == 0}
        rate = min(tried, key=lambda rate: tried[rate] if np.isfinite(tried[rate]) else np.inf)
        return [run for run in self.runs if (run.side, run.rate) == (side, rate)]


def _characters(path: Path, sizes: Sizes) -> np.ndarray:
    """The text as the numbers of its most frequent characters; all others are the last one."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    text = np.frombuffer(content.decode().encode("utf-32-le"), np.uint32)
    known, counts = np.unique(text, return_counts=True)
    known = np.sort(known[np.argsort(-counts, kind="stable")][:sizes.symbols - 1])
    places = np.minimum(np.searchsorted(known, text), len(known) - 1)
    result: np.ndarray = np.where(known[places] == text, places, sizes.symbols - 1).astype(np.int64)
    return result


def _columns(characters: np.ndarray, sizes: Sizes) -> Any:
    """Texts side by side, (time, batch)."""
    import torch

    length = len(characters) // sizes.batch
    if length <= sizes.steps:
        raise UsageError(f"[inside_pytorch] TEXT: expected at least {20 * sizes.batch * (sizes.steps + 1)} characters, "
                         f"found {len(characters)} for a part of it")
    return torch.from_numpy(np.ascontiguousarray(characters[:length * sizes.batch].reshape(sizes.batch, length).T))


class Training:
    """One training, which goes on by some updates at a time."""

    def __init__(self, side: str, rate: float, seed: int, sizes: Sizes, parts: Sequence[Any]) -> None:
        import torch

        from duoln.bench.language_model_torch import model_of

        torch.manual_seed(seed)  # of torch.nn.LSTM, whose start is its own
        self.named, self.sizes, (self.train, self.validation) = (side, rate, seed), sizes, parts
        self.model = model_of(side, sizes, LanguageModel(sizes.symbols, sizes.width).init(seed))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.states, self.place, self.seconds = self.model.first(sizes.batch), 0, 0.0
        self.losses = [self._validate()]

    def _loss(self, piece: Any, states: Any) -> tuple[Any, Any]:
        import torch

        logits, states = self.model(piece[:-1], states)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), piece[1:].flatten()), states

    def _validate(self) -> float:
        import torch

        with torch.no_grad():
            loss, _ = self._loss(self.validation, self.model.first(self.validation.shape[1]))
        return float(loss)

    def go_on(self, updates: int) -> None:
        """Some updates, each on the piece of text after that before; then a validation."""
        import torch

        begin = time.perf_counter()
        for _ in range(updates):
            if self.place + self.sizes.steps >= len(self.train):
                self.states, self.place = self.model.first(self.sizes.batch), 0
            piece = self.train[self.place:self.place + self.sizes.steps + 1]
            self.place += self.sizes.steps
            self.optimizer.zero_grad()
            loss, states = self._loss(piece, self.states)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.states = [tuple(state.detach() for state in layer) for layer in states]
        self.seconds += time.perf_counter() - begin
        self.losses.append(self._validate())

    def run(self) -> Run:
        """What came of it."""
        return Run(*self.named, self.seconds, self.losses)


def _trained(trainings: Sequence[Training], updates: int, every: int) -> list[Run]:
    for _ in range(updates // every):
        for training in trainings:
            training.go_on(every)
    return [training.run() for training in trainings]


def draw(record: Record, path: Path) -> Path:
    """Validation loss by seconds of training, the median seed of each side with the range."""
    with figure(path, size=(6.4, 3.6)) as (_, panels):
        panel = panels[0][0]
        for side, (name, colour, line) in SIDES.items():
            runs = record.results(side)
            losses = np.array([run.losses for run in runs])
            seconds = np.linspace(0, float(np.median([run.seconds for run in runs])), losses.shape[1])
            panel.fill_between(seconds, losses.min(0), losses.max(0), color=colour, alpha=0.2, linewidth=0)
            panel.plot(seconds, np.median(losses, 0), color=colour, linestyle=line, label=name)
        panel.set_xlabel("seconds of training on two cores")
        panel.set_ylabel("validation loss, nats a character")
        panel.set_ylim(top=2.6)
        panel.legend()
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.inside_pytorch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="updates between validations")
    parser.add_argument("--sizes", type=int, nargs=4, default=Sizes(), metavar=("STEPS", "BATCH", "WIDTH", "SYMBOLS"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    sizes = Sizes(*asked.sizes)
    characters = _characters(asked.text, sizes)
    held_out = len(characters) // 20
    small = sizes._replace(batch=8)
    parts = _columns(characters[:-held_out], sizes), _columns(characters[-held_out:], small)[:512]
    runs: list[Run] = []
    for rate in RATES:
        runs += _trained([Training(side, rate, 0, sizes, parts) for side in SIDES], asked.updates, asked.every)
    best = {side: Record({}, runs).results(side)[0].rate for side in SIDES}
    for seed in range(1, SEEDS):
        runs += _trained([Training(side, best[side], seed, sizes, parts) for side in SIDES], asked.updates, asked.every)
    record = Record({**sizes._asdict(), "updates": asked.updates, "every": asked.every, "text": asked.text.name,
                     "duoln": duoln.__version__}, runs)
    for side, (name, *_) in SIDES.items():
        of_side = record.results(side)
        last = records.spread([run.losses[-1] for run in of_side], ".3f")
        update = records.spread([1000 * run.seconds / asked.updates for run in of_side], ".1f")
        print(f"{name}: rate {of_side[0].rate:g}, validation loss {last}, {update} ms an update")
    if asked.json:
        for path in records.write(record, asked.json, draw):
            print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
