"""Fixed-binarised MNIST on disk: bits in one .npz, or the text files in which Larochelle gave them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from duoln.data import read_npz
from duoln.data.bounded import read_whole
from duoln.data.npz import Expected
from duoln.errors import DataFormatError
from duoln.tasks import Dataset
from duoln.tasks.originals import absent, locate

FOLDER = "binarized_mnist"
PACKED = f"{FOLDER}/binarized_mnist_packed.npz"
SPLITS = ("train", "valid", "test")
TEXTS = {split: f"binarized_mnist_{split}.amat" for split in SPLITS}
PLACES = ((PACKED,), tuple(f"{FOLDER}/{name}" for name in TEXTS.values()))
"""The places below a data folder where it may be."""
PIXELS = 784
ROW_BYTES = PIXELS // 8

# Of the packed bits of train, valid and test, one after another: what the numbers of the literature are about.
KNOWN_SHA256 = "c462f82a020638a4d5d8d44e4c83242ee0145ee1d125869d0e030c35011837e6"

_MAX_BYTES = 1 << 27
"""The largest size of a text file; the largest of Larochelle's has 78 million bytes."""
_MOST_IMAGES = 1 << 18
"""The most images of a packed file; one takes 784 bytes, unpacked. The training images are 50,000."""


def find_images(root: Path | None = None) -> Callable[[], tuple[Dataset, dict[str, np.ndarray]]]:
    """The function that reads the splits, uint8 (images, 784) of 0 and 1, from where they are.

    Looks below `root`, the folders of DUOLN_DATA and the cache for `binarized_mnist/`: the packed file first, then
    the three text files. The provenance is "original" where the bits are those of the known files.

    Raises:
        DataMissingError: neither is there; the message says where to put them. DataError: one of the text files is
            missing.
    """
    if (packed := locate([PACKED], root)) is not None:
        return lambda: _identify_dataset(read_packed(packed[0]))
    texts = locate(PLACES[1], root)
    if texts is None:
        raise absent([PACKED, *TEXTS.values()], root, "put the first, or the three texts of "
                     f"http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist, in a folder {FOLDER} there")
    return lambda: _identify_dataset({split: np.packbits(read_text(path), axis=1)
                               for split, path in zip(TEXTS, texts, strict=True)})


def _identify_dataset(packed: dict[str, np.ndarray]) -> tuple[Dataset, dict[str, np.ndarray]]:
    digest = hashlib.sha256(b"".join(packed[split].tobytes() for split in SPLITS)).hexdigest()
    dataset = (Dataset("binarised MNIST", "original") if digest == KNOWN_SHA256
               else Dataset("binarised images of another origin", "substitute"))
    return dataset, {split: np.unpackbits(packed[split], axis=1) for split in SPLITS}


# The packed file ---------------------------------------------------------------------------------------

def read_packed(path: Path) -> dict[str, np.ndarray]:
    """The packed bits of each split, uint8 (images, 98). Nothing is unpickled.

    Raises:
        DataError: the file cannot be read. DataFormatError: no .npz archive, or an array in it is missing, damaged,
            of another dtype or shape, or empty.
    """
    arrays = read_npz(path, {split: Expected("u1", 2) for split in SPLITS})
    for split, packed in arrays.items():
        if packed.shape[1] != ROW_BYTES or not 1 <= len(packed) <= _MOST_IMAGES:
            raise DataFormatError(f"{path}: {split}", 0, f"shape (images, {ROW_BYTES}), at most {_MOST_IMAGES} images",
                                  packed.shape)
    return arrays


# The text files ----------------------------------------------------------------------------------------

def read_text(path: Path) -> np.ndarray:
    """A text file of one image a line, 784 values of 0 or 1 with white space between: uint8 (images, 784).

    Raises:
        DataError: the file cannot be read. DataFormatError: another value, or lines of other lengths.
    """
    content = read_whole(path, _MAX_BYTES, "text of 0 and 1")
    if not content.strip():
        raise DataFormatError(path, 0, f"{PIXELS} values in line 1", "an empty file")
    try:
        values = np.loadtxt(io.BytesIO(content), np.uint8, comments=None, ndmin=2, encoding="latin-1")
    except ValueError as error:  # it names the line
        raise DataFormatError(path, 0, f"{PIXELS} values of 0 or 1 a line", str(error)[:200]) from error
    if values.shape[1] != PIXELS or values.max() > 1:
        raise DataFormatError(path, 0, f"{PIXELS} values of 0 or 1 a line", f"{values.shape[1]} up to {values.max()}")
    return values
