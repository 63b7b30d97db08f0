"""Maps the array of an .npy file, which stays on disk; a value is read when it is used, and every claim is checked."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from duoln.data.bounded import opened, size_of
from duoln.data.npz import LONGEST_HEADER, Expected, read_header
from duoln.errors import DataFormatError


def map_npy(path: Path, expected: Expected) -> np.ndarray:
    """The array of an .npy file, read-only, whose values are read from disk as they are used.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: no .npy file, another dtype or rank, values by columns, none at all, pickled ones, or another
            number of bytes than its header claims. The message names the file.
    """
    with opened(path, ".npy file") as file:
        size = size_of(file)
        shape, by_columns, dtype, start = read_header(str(path), file.read(LONGEST_HEADER))
        if dtype != np.dtype(expected.dtype) or len(shape) != expected.rank:
            raise DataFormatError(path, 0, expected, f"{dtype} of shape {shape}")
        if by_columns:
            raise DataFormatError(path, 0, "values by rows", "values by columns (Fortran order)")
        claimed = prod(shape) * dtype.itemsize
        if claimed != size - start or not claimed:
            raise DataFormatError(path, start, f"{claimed} bytes, as its header claims" if claimed else "values",
                                  f"{size - start}")
        return np.memmap(file, dtype, "r", start, shape)
