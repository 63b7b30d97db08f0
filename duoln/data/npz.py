"""Arrays from an .npz file of which nothing is believed: no pickles, no claim that the file's size does not allow."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple

import numpy as np

from duoln.errors import DataError, DataFormatError, DataMissingError

_GREATEST_RATIO = 1032
"""How much DEFLATE can shrink at best: a member that claims more is lying."""
_MAX_BYTES = 1 << 30
_WIDEST = 4096
"""Characters of the longest text that is believed."""
_LAST_CHARACTER = 0x10FFFF
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
                   struct.error)
"""What Python's zip reader raises for a file that is none, or a damaged one (an encrypted or odd member, too)."""
_HEADER_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, TokenError, RecursionError,
                  MemoryError, Warning)
"""What NumPy and Python's own parser, which it calls, raise for a header that is none."""


class Expected(NamedTuple):
    """What an array has to be."""

    dtype: str
    """As NumPy writes it, such as "i2" or "u1"; "U" is text of any width."""
    rank: int

    def __str__(self) -> str:
        kind = "text" if self.dtype == "U" else np.dtype(self.dtype).name
        return f"{kind} values along {self.rank} {'axis' if self.rank == 1 else 'axes'}"


def read_npz(path: Path, arrays: Mapping[str, Expected]) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file; others in it are left alone.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: no .npz archive, a damaged one, one without an array, or an array of another dtype or rank,
            pickled, or larger than what follows its header. The message names file and array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            return {name: _array(path, archive, members.get(f"{name}.npy"), name, expected)
                    for name, expected in arrays.items()}
    except FileNotFoundError as error:
        raise DataMissingError(f"{path}: expected an .npz file, found nothing there") from error
    except _ARCHIVE_ERRORS as error:
        raise DataFormatError(path, 0, "an undamaged .npz archive", f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, name: str,
           expected: Expected) -> np.ndarray:
    """One array, once its header is known to tell of no more than is really there."""
    where = f"{path}: {name}"
    if info is None:
        raise DataFormatError(path, 0, f"an array '{name}'", ", ".join(archive.namelist()) or "an empty archive")
    most = min(info.compress_size * _GREATEST_RATIO, _MAX_BYTES)
    if info.file_size > most:
        raise DataFormatError(where, 0, f"at most {most} bytes", f"a claim of {info.file_size}")
    with archive.open(info) as raw:
        content = raw.read(info.file_size + 1)
    shape, by_columns, dtype, start = read_header(where, content)
    text = expected.dtype == "U"
    fits = dtype.kind == "U" and 0 < dtype.itemsize <= 4 * _WIDEST if text else dtype == np.dtype(expected.dtype)
    if not fits or len(shape) != expected.rank:
        raise DataFormatError(where, 0, expected, f"{dtype} of shape {shape}")
    claimed, rest = prod(shape) * dtype.itemsize, len(content) - start
    if claimed != rest:
        raise DataFormatError(where, start, f"{claimed} bytes, as its header claims", rest)
    values = np.frombuffer(content, dtype, prod(shape), start) if rest else np.zeros(prod(shape), dtype)
    if text and rest:
        points = np.frombuffer(content, dtype.byteorder.replace("=", "<").replace("|", "<") + "u4", offset=start)
        if points.max() > _LAST_CHARACTER:  # NumPy would make texts of it that Python cannot handle
            raise DataFormatError(where, start, "characters of Unicode", f"number {points.max()}")
    return np.ascontiguousarray(values.reshape(shape, order="F")) if by_columns else values.reshape(shape)


def read_header(where: str, content: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """The header of an .npy array: shape, whether it is by columns, dtype, and where the values begin.

    Raises:
        DataFormatError: it is none; the message begins with `where`.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a header of Python 2 is none of ours
            shape, by_columns, dtype = read(stream)
    except _HEADER_ERRORS as error:
        text = str(error).splitlines() or ["no reason"]
        raise DataFormatError(where, 0, "an npy header", f"{type(error).__name__}: {text[0]:.200}") from error
    return shape, by_columns, dtype, stream.tell()
