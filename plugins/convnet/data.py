"""Batches of images, prepared, with the noise and the dropout masks that go with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.data import Batch, Batches
from duoln.data.digits import make_digits
from duoln.data.mnist import find_mnist, read_found
from duoln.errors import UsageError
from duoln.plugins.convnet import corpus
from duoln.plugins.convnet.corpus import Images
from duoln.plugins.convnet.model import mask_shapes
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, blame_missing_data, original_or_made
from duoln.tasks.settings import check_least

Corpus = Literal["cifar10", "mnist"]
Source = Literal["auto", "real", "made"]

SHAPES: dict[Corpus, tuple[int, int, int]] = {"cifar10": (32, 32, 3), "mnist": (28, 28, 1)}
MADE = {"train": 2_000, "test": 500}
_VALID = 5_000
"""The last digits of MNIST's training images are left out, as in the paper's section 6.6."""
ROWS: dict[Corpus, int] = {"cifar10": len(corpus.FILES["train"]) * corpus.RECORDS, "mnist": 60_000 - _VALID}
"""The training images of each whole corpus; a folder may have fewer."""


def splits(cfg: Any, root: Path | None) -> Splits:
    """The images of a configuration; each training batch brings its noise and the masks of its dropout.

    Raises:
        as `original_or_made`. UsageError: `rows`, `evaluate_images`, `noise`, `dropout` or `decay` out of range.
    """
    _check(cfg)
    (dataset, images), why = _load(cfg.dataset, cfg.source, root)
    images["train"] = Images(*(a[:cfg.rows] for a in images["train"]))
    prepare = fit_whitening(images["train"].images, cfg.whitening)
    arrays = {split: {"x": prepare(part.images), "label": part.labels} for split, part in images.items()}
    with blame_missing_data(cfg.source, why):
        order = Batches(arrays["train"], cfg.batch_size, cfg.seed)
    shapes = mask_shapes(SHAPES[cfg.dataset], cfg.channels)

    def train(step: int) -> Batch:
        batch = order(step)
        rng = Stream(cfg.seed, "convnet", step=step)
        noise = rng.child("noise").gaussian(batch["x"].shape).astype(np.float32)
        keep = 1 - cfg.dropout
        masks = {name: rng.child(name).keep_mask((cfg.batch_size, *shape), keep) / np.float32(keep)  # the mean stays
                 for name, shape in shapes.items()}
        return {**batch, "noise": np.float32(cfg.noise) * noise, **masks}

    return Splits(dataset, train, order.steps_per_epoch,
                  {split: {k: a[:cfg.evaluate_images] for k, a in part.items()} for split, part in arrays.items()},
                  (why, whitening_remark(arrays["train"]["x"], arrays["test"]["x"]),
                   _schedule_remark(cfg, cfg.epochs * order.steps_per_epoch)))


def updates(cfg: Any) -> int:
    """The updates of a run of these settings, where the whole corpus is there."""
    rows = MADE["train"] if cfg.source == "made" else ROWS[cfg.dataset]
    return int(cfg.epochs * (min(rows, cfg.rows or rows) // cfg.batch_size))


def schedule(cfg: Any) -> Callable[[int], float]:
    """The learning rate of each update: constant, and in the last share of them along a line to 0."""
    return partial(_decayed_rate, cfg.learning_rate, round((1 - cfg.decay) * updates(cfg)), updates(cfg))


def _decayed_rate(rate: float, start: int, stop: int, step: int) -> float:
    return rate if start >= stop else rate * min(max((stop - step) / (stop - start), 0.0), 1.0)


def _schedule_remark(cfg: Any, made: int) -> str:
    """A sentence about a run whose learning rate is that of more updates than it makes; "" for others."""
    if not cfg.decay or made == updates(cfg):
        return ""
    return (f"the learning rate falls as in the {updates(cfg):,} updates of the whole corpus; this run has {made:,}, "
            "because another number of images is there")


def _check(cfg: Any) -> None:
    check_least("convnet", cfg, rows=1, evaluate_images=1)
    if not 0 <= cfg.decay <= 1:
        raise UsageError(f"[convnet] expected a decay in [0, 1], found {cfg.decay}")
    if not 0 <= cfg.dropout < 1:
        raise UsageError(f"[convnet] expected a dropout in [0, 1), found {cfg.dropout}")
    if not 0 <= cfg.noise < np.inf:
        raise UsageError(f"[convnet] expected a noise of at least 0, found {cfg.noise}")


def _load(name: Corpus, source: Source, root: Path | None) -> tuple[tuple[Dataset, dict[str, Images]], str]:
    def find() -> Callable[[], tuple[Dataset, dict[str, Images]]]:
        return corpus.find_images(root) if name == "cifar10" else partial(_mnist, find_mnist(root))

    return original_or_made(source, find, partial(_synthetic_images, name))


def _synthetic_images(name: Corpus) -> tuple[Dataset, dict[str, Images]]:
    make = make_coloured if name == "cifar10" else make_grey
    return (Dataset("made digits, coloured" if name == "cifar10" else "made digits", "synthetic"),
            {split: make(count, DATA_SEED, split) for split, count in MADE.items()})


def _mnist(paths: Mapping[str, tuple[Path, Path]]) -> tuple[Dataset, dict[str, Images]]:
    images = {split: Images(digits.images[..., None], digits.labels) for split, digits in read_found(paths).items()}
    images["train"] = Images(*(a[:-_VALID] for a in images["train"]))
    return Dataset("MNIST", "substitute"), images


@lru_cache(maxsize=4)  # drawing them takes longer than a smoke run's steps
def make_grey(count: int, seed: int, split: str) -> Images:
    """Synthetic digits, uint8 (count, 28, 28, 1)."""
    images, labels = make_digits(count, seed, split)
    return Images(images[..., None], labels.astype(np.int32))


@lru_cache(maxsize=4)
def make_coloured(count: int, seed: int, split: str) -> Images:
    """Synthetic digits in a colour of their own on another, uint8 (count, 32, 32, 3)."""
    grey, labels = make_grey(count, seed, split)
    ink = np.pad(grey, ((0, 0), (2, 2), (2, 2), (0, 0))) / 255
    behind, before = Stream(seed, f"made colours {split}").uniform((2, count, 1, 1, 3), 0, 255)
    return Images((behind * (1 - ink) + before * ink).astype(np.uint8), labels)


Whitening = Literal["zca", "mean"]

_LARGER = 1.5
"""A larger ratio of the root mean squares is remarked; by all of CIFAR-10 it is 1.0."""
_WHITENED = 1000
"""Images at a time: the whole of them in float64 would be gigabytes."""


class Preparation(NamedTuple):
    """x = (pixels - 127.5) / 128, less the mean image, and multiplied by a matrix if there is one."""

    mean: np.ndarray
    """float64 (values,)."""
    matrix: np.ndarray | None
    """float64 (values, values), or None."""

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Images uint8 (count, ...) as float32 of the same shape."""
        out = np.empty((len(images), len(self.mean)), np.float32)
        for i in range(0, len(images), _WHITENED):
            centred = _scaled(images[i:i + _WHITENED]) - self.mean
            out[i:i + _WHITENED] = centred if self.matrix is None else centred @ self.matrix
        return out.reshape(images.shape)


def fit_whitening(images: np.ndarray, kind: Whitening, epsilon: float = 1e-5) -> Preparation:
    """The preparation that the training images ask for.

    "zca" makes the values of a pixel uncorrelated while it stays as near to the image as it can: with the covariance
    U S U^T of the values, x U (S + epsilon)^(-1/2) U^T (Krizhevsky 2009). Directions in which the training images do
    not differ, as where there are fewer images than values, are left out. There S is 0 but for rounding: no training
    image has anything in them, and what other images have would be multiplied by epsilon^(-1/2).
    """
    count = len(images)
    chunks = range(0, count, _WHITENED)
    mean = sum(_scaled(images[i:i + _WHITENED]).sum(axis=0) for i in chunks) / count
    if kind == "mean":
        return Preparation(mean, None)
    covariance = np.zeros((len(mean), len(mean)))
    for i in chunks:
        centred = _scaled(images[i:i + _WHITENED]) - mean
        covariance += centred.T @ centred
    spread, directions = np.linalg.eigh(covariance / count)
    differ = spread > spread.max() * len(spread) * np.finfo(np.float64).eps
    directions = directions[:, differ]
    return Preparation(mean, (directions / np.sqrt(spread[differ] + epsilon)) @ directions.T)


def whitening_remark(train: np.ndarray, test: np.ndarray) -> str:
    """A sentence where whitening fits the training images alone, so that prepared test images are larger; else ""."""
    mean_square = {name: float(np.vdot(x, x)) / x.size for name, x in (("train", train), ("test", test))}
    ratio = np.sqrt(mean_square["test"] / mean_square["train"]) if mean_square["train"] else 1.0
    return "" if ratio < _LARGER else (
        f"prepared test images are {ratio:.1f} times as large as training ones, because {len(train):,} images are too "
        "few to whiten by: set whitening=mean")


def _scaled(images: np.ndarray) -> np.ndarray:
    return (images.reshape(len(images), -1) - 127.5) / 128
