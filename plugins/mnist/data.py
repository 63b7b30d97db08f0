"""MNIST from the user's folder, the cache or a mirror; else digits made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from duoln.data import Batch, Batches, Resource, check_range, find, read_idx
from duoln.data.digits import make_digits
from duoln.errors import DataFormatError, DataMissingError, UsageError
from duoln.tasks import Dataset, Splits

Source = Literal["auto", "mnist", "made"]

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/")
_VALID = 5_000
MADE_TRAIN, MADE_TEST = 20_000, 4_000


def _resource(name: str, size: int, sha256: str) -> Resource:
    return Resource(f"mnist/{name}", sha256, size, tuple(mirror + name for mirror in _MIRRORS))


FILES = {
    "train_images": _resource("train-images-idx3-ubyte.gz", 9_912_422,
                              "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train_labels": _resource("train-labels-idx1-ubyte.gz", 28_881,
                              "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "test_images": _resource("t10k-images-idx3-ubyte.gz", 1_648_877,
                             "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "test_labels": _resource("t10k-labels-idx1-ubyte.gz", 4_542,
                             "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}


def splits(source: Source, batch_size: int, seed: int, rows: int | None, root: Path | None) -> Splits:
    """55,000 training digits, the 10,000 test digits; or made ones.

    Source "auto" falls back to made digits only where MNIST is nowhere to be had; a damaged file is an error.

    Raises:
        DataMissingError: MNIST was asked for and is not to be had.
        DataError: a file is damaged.
    """
    dataset, train, test = _load(source, seed, root)
    if rows is not None:
        if not 1 <= rows <= len(train["label"]):
            raise UsageError(f"[mnist] expected rows between 1 and {len(train['label'])}, found {rows}")
        train = {name: a[:rows] for name, a in train.items()}
    batches = Batches(train, batch_size, seed)
    return Splits(dataset, batches, batches.steps_per_epoch, {"train": train, "test": test})


def _load(source: Source, seed: int, root: Path | None) -> tuple[Dataset, Batch, Batch]:
    if source != "made":
        try:
            paths = {role: _find(resource, root) for role, resource in FILES.items()}
        except DataMissingError:
            if source == "mnist":
                raise
        else:
            train = _digits(paths["train_images"], paths["train_labels"])
            test = _digits(paths["test_images"], paths["test_labels"])
            return Dataset("MNIST", "original"), {k: a[:-_VALID] for k, a in train.items()}, test
    return (Dataset("made digits", "synthetic"), _pixels(*make_digits(MADE_TRAIN, seed, "train")),
            _pixels(*make_digits(MADE_TEST, seed, "test")))


def _find(resource: Resource, root: Path | None) -> Path:
    if root is not None and (root / resource.path).is_file():
        return root / resource.path
    return find(resource)


def _digits(images: Path, labels: Path) -> Batch:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (28, 28):
        raise DataFormatError(images, 4, "images of 28 x 28", " x ".join(map(str, x.shape)))
    if y.shape != x.shape[:1]:
        raise DataFormatError(labels, 4, f"{len(x)} labels", " x ".join(map(str, y.shape)))
    return _pixels(x, y)


def _pixels(images: np.ndarray, labels: np.ndarray) -> Batch:
    return {"x": images.reshape(len(images), 784).astype(np.float32) / np.float32(255),
            "label": check_range("mnist labels", labels, 10)}
