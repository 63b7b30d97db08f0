"""A task on a text of one's own, with all that a task may offer: `sample`, `evaluate` and `pictures` beside training.

    python -m duoln.examples.own_text                          trains on a synthetic text

A network reads the bytes of a text and predicts the next one. In a package with an entry point (see `own_task`) these
are its commands:

    duoln run own_text --set file=novel.txt --out runs/novel
    duoln sample runs/novel/ln --out novel-sample.txt --count 400
    duoln evaluate runs/novel/ln --text another.txt
    duoln report runs/novel                                    curves, and the picture that `pictures` draws
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np

import duoln
from duoln import Stream, Tensor, nn, ops
from duoln.data import Batch, Batches, read_text
from duoln.errors import DataError, UsageError
from duoln.pictures.drawing import figure
from duoln.tasks import Column, Config, Dataset, Findings, Splits, Task, Trained, hookimpl, option
from duoln.tasks.originals import DATA_SEED, in_home

BYTES = 256


@dataclass(frozen=True)
class OwnTextConfig(Config):
    """The settings: `duoln run own_text --set file=novel.txt --set hidden=128` changes two."""

    epochs: int = 5
    batch_size: int = 16
    learning_rate: float = 3e-3
    length: int = 50
    """The bytes of a training example."""
    hidden: int = 64
    """Units of the LSTM, and the length of a byte's vector."""
    norm: Literal["layer", "none"] = "layer"
    """The LSTM's normalisation."""
    file: str | None = None
    """A text, in UTF-8; without it a synthetic one."""


@dataclass(frozen=True)
class Sampling:
    """The options of `duoln sample own_text`."""

    count: int = option(200, "bytes to write")
    temperature: float = option(0.7, "below 1: likely bytes more often")
    seed: int = option(0, "of the draws")


@dataclass(frozen=True)
class Evaluating:
    """The options of `duoln evaluate own_text`."""

    text: str | None = option(None, "a text file; without it the end of the training text")


class Network(nn.Module):
    """An LSTM that predicts the next byte."""

    def __init__(self, hidden: int, norm: Literal["layer", "none"]) -> None:
        self.embedding, self.out = nn.Embedding(BYTES, hidden), nn.Linear(hidden, BYTES)
        self.lstm = nn.LSTM(hidden, hidden, norm=norm)

    def __call__(self, params: nn.Params, ids: Tensor, states: Any = None) -> tuple[Tensor, Any]:
        """Logits (time, batch, BYTES) and the last states, from ids (time, batch)."""
        h, states = self.lstm(params["lstm"], self.embedding(params["embedding"], ids), states)
        return self.out(params["out"], h), states


class OwnText(Task):
    """The next byte of a text."""

    name, title, x_axis = "own_text", "The next byte of a text", "update"
    config, sampling, evaluating = OwnTextConfig, Sampling, Evaluating
    sample_name = "sample.txt"
    presets: ClassVar = {"small": {}, "smoke": {"epochs": 1, "hidden": 16, "batch_size": 4}}
    variants: ClassVar = {"ln": {"norm": "layer"}, "none": {"norm": "none"}}
    columns = (Column("valid_bits", "bits a byte", ".3f"),)

    def data(self, cfg: OwnTextConfig, root: Path | None = None) -> Splits:
        """Nine tenths of the text are for training; `root` is where `check_task(corpus=...)` has its texts."""
        path = in_home(cfg.file) if cfg.file is not None else None if root is None else root / "text.txt"
        dataset = Dataset("made sentences", "synthetic") if path is None else Dataset(path.name, "original")
        text = _made_text(DATA_SEED) if path is None else read_text(path)
        rows = _rows(text, cfg.length, path or "made sentences")
        split = max(len(rows) * 9 // 10, 1)
        train = Batches({"ids": rows[:split]}, min(cfg.batch_size, split), cfg.seed)
        return Splits(dataset, train, train.steps_per_epoch, {"valid": {"ids": rows[split:]}})

    def model(self, cfg: OwnTextConfig) -> nn.Module:
        return Network(cfg.hidden, cfg.norm)

    def loss(self, model: nn.Module, params: nn.Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(self.predict(model, params, batch))

    def predict(self, model: nn.Module, params: nn.Params, batch: dict[str, Tensor]) -> Tensor:
        """The nats of each byte but the first, (batch, time - 1): what `metrics` gets as NumPy arrays."""
        ids = ops.permute_dims(batch["ids"], (1, 0))
        logits, _ = model(params, ids[:-1])
        return ops.permute_dims(ops.softmax_cross_entropy(logits, ids[1:]), (1, 0))

    def metrics(self, predict: Any, split: Batch) -> dict[str, float]:
        return {"bits": float(np.mean(predict(split)) / np.log(2))}

    def sample(self, trained: Trained, options: Sampling, out: Path) -> list[Path]:
        """Bytes one by one: the model's output is its next input, and its states go with it."""
        if options.temperature <= 0 or options.count < 1:
            raise UsageError(f"[own_text] expected a temperature above 0 and a count of at least 1, found "
                             f"{options.temperature} and {options.count}")
        model, backend = cast("Network", trained.model), trained.params["out"]["weight"].backend
        rng, states, written = Stream(options.seed, "own_text sample"), None, bytearray(b"\n")
        for _ in range(options.count):
            ids = duoln.tensor(np.array([[written[-1]]], np.int32), backend)
            logits, states = model(trained.params, ids, states)
            scaled = logits.numpy()[0, 0].astype(np.float64) / options.temperature
            written.append(int(rng.categorical(logits=scaled)))
        out.write_text(bytes(written[1:]).decode("utf-8", "replace"), encoding="utf-8")
        return [out]

    def evaluate(self, trained: Trained, options: Evaluating, say: Callable[[str], None]) -> Findings:
        """The bits a byte of a text, and how many of them the place in an example explains."""
        rows = self._rows_of(trained.config, options.text)
        say(f"{len(rows):,} examples of {trained.config.length} bytes")
        bits = self._bits(trained, rows)
        figures = {"bits": float(bits.mean()), "bits_first": float(bits[:, 0].mean()),
                   "bits_last": float(bits[:, -1].mean())}
        words = ("bits a byte", "of the first of an example", "of the last")
        return Findings("The next byte", ("", "bits"), [(word, f"{value:.3f}") for word, value in
                                                       zip(words, figures.values(), strict=True)],
                        [f"text: {options.text or 'the end of the training text'}"], figures)

    def pictures(self, runs: Mapping[str, Trained], folder: Path) -> list[Path]:
        """The bits of a byte by its place in an example: what the bytes before it tell."""
        with figure(folder / "context.png") as (_, axes):
            for label, trained in runs.items():
                bits = self._bits(trained, self._rows_of(trained.config, None)).mean(axis=0)
                axes[0][0].plot(np.arange(1, len(bits) + 1), bits, label=label)
            axes[0][0].set(xlabel="bytes before", ylabel="bits a byte")
            axes[0][0].legend()
        return [folder / "context.png"]

    def _rows_of(self, cfg: OwnTextConfig, text: str | None) -> np.ndarray:
        """The examples of a text file, or those that the training has left out."""
        if text is not None:
            return _rows(read_text(in_home(text)), cfg.length, text)
        held_out: np.ndarray = self.data(cfg).evaluation["valid"]["ids"]
        return held_out

    def _bits(self, trained: Trained, rows: np.ndarray) -> np.ndarray:
        """Bits of each byte but the first of each example."""
        ids = duoln.tensor(rows, trained.params["out"]["weight"].backend)
        bits: np.ndarray = self.predict(trained.model, trained.params, {"ids": ids}).numpy() / np.log(2)
        return bits


def _rows(text: str, length: int, where: object) -> np.ndarray:
    """Examples of `length` bytes and the one after them, int32 (examples, length + 1)."""
    ids = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)
    count = (len(ids) - 1) // length
    if count < 2:
        raise DataError(f"[own_text] {where}: expected at least {2 * length + 1} bytes, found {len(ids)}")
    return np.stack([ids[i * length:(i + 1) * length + 1] for i in range(count)])


def _made_text(seed: int, sentences: int = 1500) -> str:
    """Short sentences: so many words that agree in number."""
    rng = Stream(seed, "own_text sentences")
    words = [["one cat sleeps", "one bird sings", "two cats sleep", "two birds sing"][i]
             for i in rng.integers(4, (sentences,))]
    return "".join(f"{word}.\n" for word in words)


@hookimpl
def duoln_tasks() -> list[Task]:
    """The tasks of this module, for duoln's plug-in system."""
    return [OwnText()]


if __name__ == "__main__":
    import sys

    from duoln.cli import run_task

    sys.exit(run_task(OwnText, sys.argv[1:]))
