"""MNIST: its four files, and the checks of their content."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.core.fields import fields_in_words
from duoln.core.miscalled import explained
from duoln.data.batches import check_range
from duoln.data.files import Resource, find
from duoln.data.idx import read_idx
from duoln.errors import DataFormatError

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/")


def _resource(name: str, size: int, sha256: str) -> Resource:
    return Resource(f"mnist/{name}", sha256, size, tuple(mirror + name for mirror in _MIRRORS))


FILES = {
    "train": (_resource("train-images-idx3-ubyte.gz", 9_912_422,
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
              _resource("train-labels-idx1-ubyte.gz", 28_881,
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c")),
    "test": (_resource("t10k-images-idx3-ubyte.gz", 1_648_877,
                       "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
             _resource("t10k-labels-idx1-ubyte.gz", 4_542,
                       "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")),
}
"""Images and labels of each split."""


@fields_in_words
class Digits(NamedTuple):
    """Images uint8 (count, 28, 28) and labels int32 (count,) in 0 .. 9."""

    images: np.ndarray
    labels: np.ndarray


@explained
def read_mnist(root: Path | None = None) -> dict[str, Digits]:
    """The 60,000 digits of "train" and the 10,000 of "test", as they are distributed.

    A file below `root` comes before DUOLN_DATA, the cache and the mirrors.

    Raises:
        DataMissingError: a file cannot be found or downloaded. DataError: a file is damaged, or its content is not
            MNIST's.
    """
    paths = {split: [_find(resource, root) for resource in pair] for split, pair in FILES.items()}
    return {split: _digits(*pair) for split, pair in paths.items()}


def _find(resource: Resource, root: Path | None) -> Path:
    if root is not None and (root / resource.path).is_file():
        return root / resource.path
    return find(resource)


def _digits(images: Path, labels: Path) -> Digits:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (28, 28):
        raise DataFormatError(images, 4, "images of 28 x 28", " x ".join(map(str, x.shape)))
    if y.shape != x.shape[:1]:
        raise DataFormatError(labels, 4, f"{len(x)} labels", " x ".join(map(str, y.shape)))
    return Digits(x, check_range(f"{labels}", y, 10))
