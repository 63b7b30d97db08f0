"""CIFAR-10 on disk: the archive of the binary version, or a part of it as one .npz file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from duoln.data import read_npz, read_tar
from duoln.data.files import Resource, find, packed_or_not, search_folders
from duoln.data.npz import Expected
from duoln.errors import DataError, DataFormatError
from duoln.tasks import Dataset

FOLDER = "cifar10"
BATCHES = "cifar-10-batches-bin"
SUBSET = f"{FOLDER}/cifar10_subset.npz"
ARCHIVE = Resource(f"{FOLDER}/cifar-10-binary.tar.gz",
                   "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171,
                   ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",))
_PICKLED = ("cifar-10-batches-py", "cifar-10-python.tar.gz")
FILES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}

PLACES = ((ARCHIVE.path,), (SUBSET,))
"""The places below a data folder where it may be, in the order in which they are tried."""
CLASSES = 10
RECORDS = 10_000
"""The images of every file of the binary version."""
_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_MAX_UNPACKED = 200_000_000
"""Bytes of the greatest archive that is believed: the known one unpacks to 184 million."""


class Images(NamedTuple):
    """Images uint8 (count, height, width, channels) and labels int32 (count,) in 0 .. 9."""

    images: np.ndarray
    labels: np.ndarray


def find_images(root: Path | None = None) -> Callable[[], tuple[Dataset, dict[str, Images]]]:
    """The function that reads CIFAR-10, "train" and "test", from where it is.

    Looks below `root`, the folders of DUOLN_DATA and the cache for `cifar10/`: the archive first, then a part of it;
    and downloads the archive where neither is there. The paper names no corpus for its section 6.7, so both are
    substitutes.

    Raises:
        DataMissingError: CIFAR-10 is not available. DataError: what is there is the version for Python, whose pickles
            are not read.
    """
    for folder in search_folders(root):
        if (archive := packed_or_not(folder / ARCHIVE.path)) is not None:
            return partial(_load_archive, archive)
        if (subset := packed_or_not(folder / SUBSET)) is not None:
            return partial(_load_subset, subset)
    for pickled in (folder / FOLDER / name for folder in search_folders(root) for name in _PICKLED):
        if packed_or_not(pickled) is not None:
            raise DataError(f"{pickled}: the version for Python, whose pickles could run any program when they are "
                            f"read; expected {ARCHIVE.path}, the binary version, from {ARCHIVE.urls[0]}")
    return partial(_load_archive, find(ARCHIVE))


def _load_archive(path: Path) -> tuple[Dataset, dict[str, Images]]:
    return Dataset("CIFAR-10", "substitute"), read_archive(path)


def _load_subset(path: Path) -> tuple[Dataset, dict[str, Images]]:
    images = read_subset(path)
    return Dataset(f"CIFAR-10, {len(images['train'].labels):,} images", "substitute"), images


# The binary version -------------------------------------------------------------------------------------

def read_archive(path: Path) -> dict[str, Images]:
    """The six files out of the archive as it is distributed. Nothing is unpacked to disk.

    Raises:
        DataError: the archive cannot be read.
        DataFormatError: it is damaged, unpacks to more than CIFAR-10 has, names a place outside of itself, or lacks a
            file; or see `parse_batch`.
    """
    names = [name for of_split in FILES.values() for name in of_split]
    wanted = {PurePosixPath(BATCHES, name) for name in names}
    batches = {place.name: parse_batch(where, content) for place, where, content in
               read_tar(path, _MAX_UNPACKED, RECORDS * _RECORD_BYTES, wanted.__contains__)}
    for name in names:
        if name not in batches:
            raise DataFormatError(path, 0, f"a file {BATCHES}/{name}", ", ".join(batches) or "none of the six")
    return {split: Images(*map(np.concatenate, zip(*(batches[name] for name in of_split), strict=True)))
            for split, of_split in FILES.items()}


def parse_batch(where: str, content: bytes) -> Images:
    """One file of the binary version: records of a label and 3 x 32 x 32 pixels.

    Raises:
        DataFormatError: another size, or a label above 9; the message names `where` and the byte.
    """
    size = RECORDS * _RECORD_BYTES
    if len(content) != size:
        raise DataFormatError(where, min(len(content), size), f"{size} bytes ({RECORDS} records of {_RECORD_BYTES})",
                              len(content))
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, _RECORD_BYTES)
    strange = np.flatnonzero(records[:, 0] >= CLASSES)
    if len(strange):
        record = int(strange[0])
        raise DataFormatError(where, record * _RECORD_BYTES, f"a label of at most {CLASSES - 1} in record {record}",
                              int(records[record, 0]))
    return Images(_channels_last(records[:, 1:].reshape(-1, *_SHAPE)), records[:, 0].astype(np.int32))


def _channels_last(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


# A part of it -------------------------------------------------------------------------------------------

def read_subset(path: Path) -> dict[str, Images]:
    """Arrays train_images, train_labels, test_images and test_labels of an .npz file, images as (count, 3, 32, 32).

    Raises:
        DataError: the file cannot be read.
        DataFormatError: no .npz archive, or an array in it is missing, damaged, of another dtype or shape, or empty;
            or a label is above 9.
    """
    arrays = read_npz(path, {f"{split}_{what}": Expected("u1", rank, f"images of {split}") for split in FILES
                             for what, rank in (("images", 4), ("labels", 1))})
    images_of = {}
    for split in FILES:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.shape[1:] != _SHAPE or not len(images):
            raise DataFormatError(f"{path}: {split}_images", 0, "shape (images, 3, 32, 32)", images.shape)
        strange = np.flatnonzero(labels >= CLASSES)
        if len(strange):
            raise DataFormatError(f"{path}: {split}_labels", int(strange[0]), f"labels of at most {CLASSES - 1}",
                                  int(labels[strange[0]]))
        images_of[split] = Images(_channels_last(images), labels.astype(np.int32))
    return images_of
