"""An array in an .npy file, left on disk: nothing is read before it is asked for, and nothing is believed."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from duoln.data.npz import Expected, read_header
from duoln.errors import DataError, DataFormatError, DataMissingError

_LONGEST_HEADER = 1 << 16


def map_npy(path: Path, expected: Expected) -> np.ndarray:
    """The array of an .npy file, read-only, whose values are read from disk as they are used.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: no .npy file, another dtype or rank, values by columns, none at all, pickled ones, or another
            number of bytes than its header claims. The message names the file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LONGEST_HEADER)
        shape, by_columns, dtype, start = read_header(str(path), head)
        if dtype != np.dtype(expected.dtype) or len(shape) != expected.rank:
            raise DataFormatError(path, 0, expected, f"{dtype} of shape {shape}")
        if by_columns:
            raise DataFormatError(path, 0, "values by rows", "values by columns (Fortran order)")
        claimed = prod(shape) * dtype.itemsize
        if claimed != size - start or not claimed:
            raise DataFormatError(path, start, f"{claimed} bytes, as its header claims" if claimed else "values",
                                  f"{size - start}")
        return np.memmap(path, dtype, "r", start, shape)
    except FileNotFoundError as error:
        raise DataMissingError(f"{path}: expected an .npy file, found nothing there") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
