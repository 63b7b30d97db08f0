"""The common part of tasks on MNIST: its digits, or synthetic ones in their place, and the figures of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from duoln.data import Batch
from duoln.data.digits import make_digits
from duoln.data.mnist import find_mnist, read_found
from duoln.errors import UsageError
from duoln.tasks.originals import DATA_SEED, blame_missing_data, original_or_made
from duoln.tasks.task import Predict
from duoln.tasks.values import Dataset

Source = Literal["auto", "mnist", "made"]

MADE_TRAIN, MADE_TEST = 20_000, 4_000


def read_digits(name: str, source: Source, rows: int | None, root: Path | None, held_out: int,
                ) -> tuple[Dataset, dict[str, Batch], str]:
    """The digits of "train", "valid" and "test", and why they are synthetic ("" where they are not).

    Args:
        name: the task's; it begins errors.
        source: the setting.
        rows: train on the first so many only; None is all.
        root: a folder that is searched before the others.
        held_out: the last digits of the 60,000 that are not for training but for validation.

    Shape:
        "x" float32 (count, 784) in 0 .. 1, "label" int32 (count,).

    Raises:
        as `original_or_made`. UsageError: fewer digits than `rows`.
    """
    (dataset, sets), why = original_or_made(
        source, lambda: partial(_original, find_mnist(root), held_out), partial(_synthetic_digits, rows))
    train = sets["train"]
    with blame_missing_data(source, why):
        if rows is not None and not 1 <= rows <= len(train["label"]):
            raise UsageError(f"[{name}] expected rows between 1 and {len(train['label'])}, found {rows}")
    return dataset, {**sets, "train": {key: a[:rows] for key, a in train.items()}}, why


def _original(paths: Mapping[str, tuple[Path, Path]], held_out: int) -> tuple[Dataset, dict[str, Batch]]:
    digits = read_found(paths)
    train, test = (_pixels(*digits[split]) for split in ("train", "test"))
    return Dataset("MNIST", "original"), {"train": {k: a[:-held_out] for k, a in train.items()},
                                          "valid": {k: a[-held_out:] for k, a in train.items()}, "test": test}


def _synthetic_digits(rows: int | None) -> tuple[Dataset, dict[str, Batch]]:
    count = min(rows, MADE_TRAIN) if rows is not None and rows > 0 else MADE_TRAIN
    counts = {"train": count, "valid": MADE_TEST, "test": MADE_TEST}
    return Dataset("made digits", "synthetic"), {split: _pixels(*_drawn(n, split)) for split, n in counts.items()}


@lru_cache(maxsize=6)  # drawing them takes longer than a smoke run's steps
def _drawn(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    return make_digits(count, DATA_SEED, split)


def _pixels(images: np.ndarray, labels: np.ndarray) -> Batch:
    return {"x": images.reshape(len(images), 784).astype(np.float32) / np.float32(255),
            "label": labels.astype(np.int32)}


def nll_and_error(predict: Predict, split: Batch, rows: int) -> dict[str, float]:
    """The mean negative log-likelihood of a classifier whose `predict` gives logits, and its share of errors.

    Args:
        predict: as `Task.metrics` gets it.
        split: arrays "x" and "label".
        rows: at most so many are predicted at once.
    """
    label = split["label"]
    logits = np.concatenate([predict({"x": split["x"][i:i + rows]}) for i in range(0, len(label), rows)])
    logits = logits.astype(np.float64)  # a train NLL of 1e-6 is below float32's noise
    logits -= logits.max(axis=1, keepdims=True)
    log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return {"nll": -log_probability[np.arange(len(label)), label].mean(),
            "error": (logits.argmax(axis=1) != label).mean()}
