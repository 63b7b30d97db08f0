"""MNIST from the user's folder, the cache or a mirror; otherwise synthetic digits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from duoln.data import Batch, Batches
from duoln.data.digits import make_digits
from duoln.data.mnist import find_mnist, read_found
from duoln.errors import UsageError
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, original_or_made, suited_to

Source = Literal["auto", "mnist", "made"]

_VALID = 5_000
MADE_TRAIN, MADE_TEST = 20_000, 4_000


def splits(source: Source, batch_size: int, seed: int, rows: int | None, root: Path | None) -> Splits:
    """55,000 training digits, the 10,000 test digits; or synthetic ones.

    Source "auto" falls back to synthetic digits only if nothing of MNIST is there; a damaged or missing file is an
    error.

    Raises:
        DataMissingError: MNIST was requested and is not available.
        DataError: a file is damaged, or one of the four is missing.
    """
    (dataset, train, test), why = original_or_made(
        source, lambda: partial(_original, find_mnist(root)), partial(_made, rows))
    with suited_to(source, why):
        if rows is not None:
            if not 1 <= rows <= len(train["label"]):
                raise UsageError(f"[mnist] expected rows between 1 and {len(train['label'])}, found {rows}")
            train = {name: a[:rows] for name, a in train.items()}
        batches = Batches(train, batch_size, seed, within={"label": (0, 10)})
    return Splits(dataset, batches, batches.steps_per_epoch, {"train": train, "test": test}, remarks=(why,))


def _original(paths: Mapping[str, tuple[Path, Path]]) -> tuple[Dataset, Batch, Batch]:
    digits = read_found(paths)
    train, test = (_pixels(*digits[split]) for split in ("train", "test"))
    return Dataset("MNIST", "original"), {k: a[:-_VALID] for k, a in train.items()}, test


def _made(rows: int | None) -> tuple[Dataset, Batch, Batch]:
    count = min(rows, MADE_TRAIN) if rows is not None and rows > 0 else MADE_TRAIN
    return (Dataset("made digits", "synthetic"), _pixels(*_drawn(count, "train")), _pixels(*_drawn(MADE_TEST, "test")))


@lru_cache(maxsize=4)  # drawing them takes longer than a smoke run's steps
def _drawn(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    return make_digits(count, DATA_SEED, split)


def _pixels(images: np.ndarray, labels: np.ndarray) -> Batch:
    return {"x": images.reshape(len(images), 784).astype(np.float32) / np.float32(255),
            "label": labels.astype(np.int32)}
