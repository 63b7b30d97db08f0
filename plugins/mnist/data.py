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

    Raises:
        as `read`.
    """
    dataset, sets, why = read("mnist", source, rows, root, _VALID)
    batches = Batches(sets["train"], batch_size, seed, within={"label": (0, 10)})
    return Splits(dataset, batches, batches.steps_per_epoch, {name: sets[name] for name in ("train", "test")},
                  remarks=(why,))


def read(name: str, source: Source, rows: int | None, root: Path | None, held_out: int,
         ) -> tuple[Dataset, dict[str, Batch], str]:
    """The digits of "train", of "valid", the last `held_out` that are distributed for training, and of "test"; and why
    they are synthetic, if they are.

    Source "auto" falls back to synthetic digits only if nothing of MNIST is there; a damaged or missing file is an
    error. `name` begins errors.

    Raises:
        DataMissingError: MNIST was requested and is not available.
        DataError: a file is damaged, or one of the four is missing.
    """
    (dataset, sets), why = original_or_made(
        source, lambda: partial(_original, find_mnist(root), held_out), partial(_made, rows))
    with suited_to(source, why):
        if rows is not None:
            count = len(sets["train"]["label"])
            if not 1 <= rows <= count:
                raise UsageError(f"[{name}] expected rows between 1 and {count}, found {rows}")
            sets["train"] = {key: a[:rows] for key, a in sets["train"].items()}
    return dataset, sets, why


def _original(paths: Mapping[str, tuple[Path, Path]], held_out: int) -> tuple[Dataset, dict[str, Batch]]:
    digits = read_found(paths)
    train, test = (_pixels(*digits[split]) for split in ("train", "test"))
    return Dataset("MNIST", "original"), {"train": {k: a[:-held_out] for k, a in train.items()},
                                          "valid": {k: a[-held_out:] for k, a in train.items()}, "test": test}


def _made(rows: int | None) -> tuple[Dataset, dict[str, Batch]]:
    count = min(rows, MADE_TRAIN) if rows is not None and rows > 0 else MADE_TRAIN
    sets = {split: _pixels(*_drawn(count if split == "train" else MADE_TEST, split))
            for split in ("train", "valid", "test")}
    return Dataset("made digits", "synthetic"), sets


@lru_cache(maxsize=4)  # drawing them takes longer than a smoke run's steps
def _drawn(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    return make_digits(count, DATA_SEED, split)


def _pixels(images: np.ndarray, labels: np.ndarray) -> Batch:
    return {"x": images.reshape(len(images), 784).astype(np.float32) / np.float32(255),
            "label": labels.astype(np.int32)}
