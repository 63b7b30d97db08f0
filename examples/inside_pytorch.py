"""A language model of characters in PyTorch: what the exchange of its LSTM gains, in seconds.

    python -m duoln.examples.inside_pytorch TEXT --json FILE

Two layers, trained by PyTorch's AdamW: `torch.nn.LSTM`, which has no norm; a loop over LN-LSTM cells; and the LSTM of
`duoln.bridge.torch`, which computes what the loop does. TEXT is a file of plain text, also gzipped. The last twentieth
of its characters validates.

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
import torch
from torch.nn.functional import cross_entropy, layer_norm

import duoln
from duoln.bridge.torch import LSTM
from duoln.errors import UsageError
from duoln.examples import records
from duoln.pictures.drawing import figure


class Loop(LSTM):
    """The same layers with the same parameters, as a loop over time steps (Ba, Kiros, Hinton 2016, eq. 20-22)."""

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Outputs and last states of input (time, batch, in) and the first states, two of (layers, batch, hidden)."""
        p, width, last, x = dict(self.named_parameters()), self.hidden_size, [], input
        for k in range(self.num_layers):
            h, c = (state[k] for state in hx)

            def normed(a: torch.Tensor, which: str, k: int = k) -> torch.Tensor:
                name = f"layernorm_{which}_l{k}"
                return layer_norm(a, a.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

            of_x = normed(x @ p[f"weight_ih_l{k}"].t(), "i") + (p[f"bias_ih_l{k}"] + p[f"bias_hh_l{k}"])
            w_h, outputs = p[f"weight_hh_l{k}"].t(), []
            for of_step in of_x:  # the products of the inputs of all steps are one
                i, f, g, o = (of_step + normed(h @ w_h, "h")).split(width, dim=-1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(normed(c, "c"))
                outputs.append(h)
            x = torch.stack(outputs)
            last.append((h, c))
        return x, tuple(map(torch.stack, zip(*last, strict=True)))


SIDES = {"loop": ("layer norm, a loop over cells", "#D55E00", ":"), "duoln": ("layer norm, duoln", "#0072B2", "-"),
         "plain": ("no norm, torch.nn.LSTM", "#E69F00", "--")}
"""The name in the picture, the colour and the line style of each side."""
RATES, SEEDS, LAYERS = (1e-3, 2e-3, 4e-3, 8e-3), 3, 2


def layers_of(side: str, width: int) -> torch.nn.Module:
    """The recurrent layers of a side."""
    if side == "plain":
        return torch.nn.LSTM(width, width, LAYERS)
    return {"loop": Loop, "duoln": LSTM}[side](width, width, LAYERS, norm="layer")


class LanguageModel(torch.nn.Module):
    """Characters to the logits of the next ones, and the last states."""

    def __init__(self, side: str, symbols: int, width: int) -> None:
        super().__init__()
        self.table, self.lstm = torch.nn.Embedding(symbols, width), layers_of(side, width)
        self.out = torch.nn.Linear(width, symbols)

    def forward(self, ids: torch.Tensor, states: Any) -> Any:
        """Logits (time, batch, symbols) of ids (time, batch), and the last states."""
        h, states = self.lstm(self.table(ids), states)
        return self.out(h), states

    def initial_states(self, batch: int) -> Any:
        """The states before a text."""
        zeros = torch.zeros(LAYERS, batch, self.out.in_features)
        return zeros, zeros


class Sizes(NamedTuple):
    """Time steps of a piece of text, texts side by side, hidden units of each layer, different characters."""

    steps: int = 64
    batch: int = 16
    width: int = 128
    symbols: int = 96


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
        return [run for run in self.runs if (run.side, run.rate) == (side, records.best(tried))]


class Training:
    """One training, which goes on by some updates at a time."""

    def __init__(self, side: str, rate: float, seed: int, sizes: Sizes, parts: Sequence[torch.Tensor]) -> None:
        torch.manual_seed(seed)
        self.named, self.sizes, (self.train, self.validation) = (side, rate, seed), sizes, parts
        self.model = LanguageModel(side, sizes.symbols, sizes.width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.states, self.place, self.seconds = self.model.initial_states(sizes.batch), 0, 0.0
        self.losses = [self.validate()]

    def loss(self, piece: torch.Tensor, states: Any) -> tuple[torch.Tensor, Any]:
        """The mean over the characters of a piece of text but the first, and the last states."""
        logits, states = self.model(piece[:-1], states)
        return cross_entropy(logits.flatten(0, 1), piece[1:].flatten()), states

    def validate(self) -> float:
        """The loss of the held-out text."""
        with torch.no_grad():
            return float(self.loss(self.validation, self.model.initial_states(self.validation.shape[1]))[0])

    def go_on(self, updates: int) -> None:
        """Some updates, each on the piece of text after that before; then a validation."""
        begin = time.perf_counter()
        for _ in range(updates):
            if self.place + self.sizes.steps >= len(self.train):
                self.states, self.place = self.model.initial_states(self.sizes.batch), 0
            piece = self.train[self.place:self.place + self.sizes.steps + 1]
            self.place += self.sizes.steps
            self.optimizer.zero_grad()
            loss, states = self.loss(piece, self.states)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.states = tuple(state.detach() for state in states)
        self.seconds += time.perf_counter() - begin
        self.losses.append(self.validate())


def characters_of(path: Path, symbols: int) -> np.ndarray:
    """The text as the numbers of its most frequent characters; all others are the last one."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    text = np.frombuffer(content.decode().encode("utf-32-le"), np.uint32)
    known, counts = np.unique(text, return_counts=True)
    known = np.sort(known[np.argsort(-counts, kind="stable")][:symbols - 1])
    places = np.minimum(np.searchsorted(known, text), len(known) - 1)
    result: np.ndarray = np.where(known[places] == text, places, symbols - 1).astype(np.int64)
    return result


def columns(characters: np.ndarray, batch: int, steps: int) -> torch.Tensor:
    """Texts side by side, (time, batch)."""
    length = len(characters) // batch
    if length <= steps:
        raise UsageError(f"[inside_pytorch] TEXT: expected at least {20 * batch * (steps + 1)} characters, found "
                         f"{len(characters)} for a part of it")
    return torch.from_numpy(np.ascontiguousarray(characters[:length * batch].reshape(batch, length).T))


def train_in_turns(named: Sequence[tuple[str, float, int]], sizes: Sizes, parts: Sequence[torch.Tensor], updates: int,
            every: int) -> list[Run]:
    """Trainings in turns, each by its side, rate and seed."""
    trainings = [Training(*each, sizes, parts) for each in named]
    for _ in range(updates // every):
        for training in trainings:
            training.go_on(every)
    return [Run(*training.named, training.seconds, training.losses) for training in trainings]


def draw(record: Record, path: Path) -> Path:
    """Validation loss by seconds of training, the median of the seeds with their range."""
    with figure(path, size=(6.4, 3.6)) as (_, panels):
        panel = panels[0][0]
        for side, (name, colour, line) in SIDES.items():
            runs = record.results(side)
            seconds = np.linspace(0, float(np.median([run.seconds for run in runs])), len(runs[0].losses))
            records.draw_range(panel, list(seconds), [run.losses for run in runs], color=colour, linestyle=line,
                               label=f"{name}, rate {runs[0].rate:g}")
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
    characters = characters_of(asked.text, sizes.symbols)
    held_out = len(characters) // 20
    parts = (columns(characters[:-held_out], sizes.batch, sizes.steps),
             columns(characters[-held_out:], 8, sizes.steps)[:512])
    runs: list[Run] = []
    for rate in RATES:
        runs += train_in_turns([(side, rate, 0) for side in SIDES], sizes, parts, asked.updates, asked.every)
    best = {side: Record({}, runs).results(side)[0].rate for side in SIDES}
    for seed in range(1, SEEDS):
        runs += train_in_turns([(side, best[side], seed) for side in SIDES], sizes, parts, asked.updates, asked.every)
    record = Record({**sizes._asdict(), "updates": asked.updates, "every": asked.every, "text": asked.text.name,
                     "duoln": duoln.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
                     "device": duoln.backend("numpy").device}, runs)
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
