"""MNIST from the user's folder, the cache or a mirror; otherwise made digits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from duoln.data import Batch, Batches, read_mnist
from duoln.data.digits import make_digits
from duoln.errors import DataMissingError, UsageError
from duoln.tasks import Dataset, Splits

Source = Literal["auto", "mnist", "made"]

_VALID = 5_000
MADE_TRAIN, MADE_TEST = 20_000, 4_000


def splits(source: Source, batch_size: int, seed: int, rows: int | None, root: Path | None) -> Splits:
    """55,000 training digits, the 10,000 test digits; or made ones.

    Source "auto" falls back to made digits only if MNIST is not available; a damaged file is an error.

    Raises:
        DataMissingError: MNIST was requested and is not available.
        DataError: a file is damaged.
    """
    dataset, train, test = _load(source, seed, rows, root)
    if rows is not None:
        if not 1 <= rows <= len(train["label"]):
            raise UsageError(f"[mnist] expected rows between 1 and {len(train['label'])}, found {rows}")
        train = {name: a[:rows] for name, a in train.items()}
    batches = Batches(train, batch_size, seed, within={"label": (0, 10)})
    return Splits(dataset, batches, batches.steps_per_epoch, {"train": train, "test": test})


def _load(source: Source, seed: int, rows: int | None, root: Path | None) -> tuple[Dataset, Batch, Batch]:
    if source != "made":
        try:
            digits = read_mnist(root)
        except DataMissingError:
            if source == "mnist":
                raise
        else:
            train, test = (_pixels(*digits[split]) for split in ("train", "test"))
            return Dataset("MNIST", "original"), {k: a[:-_VALID] for k, a in train.items()}, test
    count = min(rows, MADE_TRAIN) if rows is not None and rows > 0 else MADE_TRAIN
    return (Dataset("made digits", "synthetic"), _pixels(*_drawn(count, seed, "train")),
            _pixels(*_drawn(MADE_TEST, seed, "test")))


@lru_cache(maxsize=4)  # drawing them takes longer than a smoke run's steps
def _drawn(count: int, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    return make_digits(count, seed, split)


def _pixels(images: np.ndarray, labels: np.ndarray) -> Batch:
    return {"x": images.reshape(len(images), 784).astype(np.float32) / np.float32(255),
            "label": labels.astype(np.int32)}
