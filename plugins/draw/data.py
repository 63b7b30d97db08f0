"""Batches of binarised images and their noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data import Batch, Batches
from duoln.data.digits import make_digits
from duoln.errors import UsageError
from duoln.plugins.draw import corpus
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, blame_missing_data, original_or_made
from duoln.tasks.settings import check_least

Source = Literal["auto", "binarized_mnist", "made"]

MADE = {"train": 4_000, "valid": 1_000, "test": 1_000}
_CHUNK = 500
"""Images a forward pass of the evaluation."""
_TRAIN_EVALUATED = 10_000


def noise(seed: int, name: str, step: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Standard normal float32 values, a function of their name and number alone."""
    return Stream(seed, f"draw noise {name}", step=step).gaussian(shape).astype(np.float32)


def splits(cfg: Any, root: Path | None) -> Splits:
    """The binarised digits of a configuration; each batch brings the noise of its latent variables.

    Raises:
        as `original_or_made`. UsageError: `rows` or `evaluate_images` out of range.
    """
    (dataset, images), why = original_or_made(cfg.source, partial(corpus.find_images, root), _synthetic_digits)
    with blame_missing_data(cfg.source, why):
        if cfg.rows is not None:
            if not 1 <= cfg.rows <= len(images["train"]):
                raise UsageError(f"[draw] expected rows between 1 and {len(images['train'])}, found {cfg.rows}")
            images["train"] = images["train"][:cfg.rows]
        order = Batches({"x": images["train"]}, cfg.batch_size, cfg.seed)
    check_least("draw", cfg, evaluate_images=1)

    def train(step: int) -> Batch:
        return {"x": order(step)["x"].astype(np.float32),
                "noise": noise(cfg.seed, "train", step, (cfg.glimpses, cfg.batch_size, cfg.latent))}

    # A split says which noise belongs to it: the noise itself would be many times larger than the images.
    key = np.array([DATA_SEED, cfg.glimpses, cfg.latent], np.int64)
    evaluated = {name: {"x": _spread(a, cfg.evaluate_images or (_TRAIN_EVALUATED if name == "train" else len(a))),
                        "noise_of": key} for name, a in images.items()}
    return Splits(dataset, train, order.steps_per_epoch, evaluated, (why,))


def _spread(images: np.ndarray, count: int) -> np.ndarray:
    """Evenly spread images: the test file is sorted by digit, so its first ones would be zeros."""
    count = min(count, len(images))
    return images[np.arange(count) * len(images) // count]


def evaluation_batches(split: Batch) -> Iterator[Batch]:
    """A whole split in pieces, each with its noise: the same at every evaluation."""
    seed, glimpses, latent = (int(v) for v in split["noise_of"])
    for k, i in enumerate(range(0, len(split["x"]), _CHUNK)):
        x = split["x"][i:i + _CHUNK].astype(np.float32)
        yield {"x": x, "noise": noise(seed, "evaluation", k, (glimpses, len(x), latent))}


def _synthetic_digits() -> tuple[Dataset, dict[str, np.ndarray]]:
    return Dataset("made digits, binarised", "synthetic"), {
        split: _binarised(count, split) for split, count in MADE.items()}


@lru_cache(maxsize=3)  # drawing them takes longer than a smoke run's steps
def _binarised(count: int, split: str) -> np.ndarray:
    """Synthetic digits, each pixel drawn once with its grey as the chance of a 1, as the fixed binarisation was."""
    grey = make_digits(count, DATA_SEED, split)[0].reshape(count, -1)
    images = (Stream(DATA_SEED, f"binarised {split}").uniform(grey.shape) * 255 < grey).astype(np.uint8)
    images.flags.writeable = False
    return images
