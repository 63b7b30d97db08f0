"""MNIST: its four files, and the checks of their content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.data.batches import check_range
from duoln.data.files import Resource, find, on_disk, packed_or_not
from duoln.data.idx import read_idx
from duoln.errors import DataError, DataFormatError, DataMissingError

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/")


def _resource(name: str, size: int, sha256: str, unpacked: str) -> Resource:
    return Resource(f"mnist/{name}", sha256, size, tuple(mirror + name for mirror in _MIRRORS), unpacked,
                    (f"MNIST/raw/{name}",))


FILES = {
    "train": (_resource("train-images-idx3-ubyte.gz", 9_912_422,
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
              _resource("train-labels-idx1-ubyte.gz", 28_881,
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5")),
    "test": (_resource("t10k-images-idx3-ubyte.gz", 1_648_877,
                       "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                       "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
             _resource("t10k-labels-idx1-ubyte.gz", 4_542,
                       "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                       "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2")),
}
"""Images and labels of each split."""
_ALL = [resource for pair in FILES.values() for resource in pair]
PLACES = (tuple(resource.path for resource in _ALL), *zip(*(resource.also for resource in _ALL), strict=True))
"""The paths of the four files below a data folder, in each layout."""


class Digits(NamedTuple):
    """Images uint8 (count, 28, 28) and labels int32 (count,) in 0 .. 9."""

    images: np.ndarray
    labels: np.ndarray


def read_mnist(root: Path | None = None) -> dict[str, Digits]:
    """The 60,000 digits of "train" and the 10,000 of "test", as they are distributed, packed or unpacked.

    A file below `root` comes before DUOLN_DATA, the cache and the mirrors.

    Raises:
        DataMissingError: no file can be found or downloaded. DataError: some of the files cannot, or a file is damaged,
            or its content is not MNIST's.
    """
    return read_found(find_mnist(root))


def find_mnist(root: Path | None = None) -> dict[str, tuple[Path, Path]]:
    """The paths of the images and labels of each split, as `read_mnist` finds them.

    Raises:
        as `read_mnist`, for files that are missing.
    """
    try:
        paths = {resource: _find(resource, root) for resource in _ALL}
    except DataMissingError as error:
        present = next((path for path in (on_disk(resource, root) for resource in _ALL) if path is not None), None)
        if present is None:
            raise
        raise DataError(f"{error}; {present} is there, and MNIST is read whole or not at all") from error
    return {split: (paths[images], paths[labels]) for split, (images, labels) in FILES.items()}


def read_found(paths: Mapping[str, tuple[Path, Path]]) -> dict[str, Digits]:
    """The digits of the files that `find_mnist` names.

    Raises:
        DataError: a file is damaged, or its content is not MNIST's.
    """
    return {split: _digits(*pair) for split, pair in paths.items()}


def _find(resource: Resource, root: Path | None) -> Path:
    below = None if root is None else packed_or_not(root / resource.path)
    return find(resource) if below is None else below


def _digits(images: Path, labels: Path) -> Digits:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (28, 28):
        raise DataFormatError(images, 4, "images of 28 x 28", " x ".join(map(str, x.shape)))
    if y.shape != x.shape[:1]:
        raise DataFormatError(labels, 4, f"{len(x)} labels", " x ".join(map(str, y.shape)))
    return Digits(x, check_range(f"{labels}", y, 10))
