"""Reads .npz and .npy files that may be hostile: no pickles, and no claim that does not fit the file's size."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np

from duoln.data.bounded import most_unpacked, opened, size_of
from duoln.data.files import write_whole
from duoln.errors import DataFormatError

_MAX_BYTES = 1 << 28
"""The most bytes of all arrays of a file. The largest real file, CIFAR-10, has 184 MB."""
_MOST_TEXTS = 1 << 18
"""The most texts of an array; each is a Python object of some 60 bytes. COCO, the largest corpus, has 123,287
images."""
_WIDEST = 4096
"""The most characters of a text."""
_LAST_CHARACTER = 0x10FFFF
_LONGEST_HEADER = 1 << 16
"""The most bytes of a header."""
_CHUNK = 1 << 20
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy writes. The unpackers of others may need gigabytes."""
_HEADER_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, TokenError, RecursionError,
                  MemoryError, Warning)
"""The errors of NumPy, and of Python's parser, which NumPy calls, for a wrong header."""


class Expected(NamedTuple):
    """The dtype and rank that an array must have."""

    dtype: str
    """As NumPy writes it, such as "i2" or "u1"; "U" is text of any width."""
    rank: int
    rows: str = ""
    """The name of the rows along the first axis: arrays whose rows have one name are equally long."""

    def __str__(self) -> str:
        kind = "text" if self.dtype == "U" else np.dtype(self.dtype).name
        return f"{kind} values along {self.rank} {'axis' if self.rank == 1 else 'axes'}"


def read_npz(path: Path, arrays: Mapping[str, Expected]) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file; others in it are left alone.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: no .npz archive, a damaged one, one without an array, or an array of another dtype, rank or
            number of rows, pickled, larger than what follows its header, or larger than is believed of a file of that
            size. The message names file and array.
    """
    values: dict[str, np.ndarray] = {}
    first_of: dict[str, str] = {}
    with opened(path, ".npz archive") as file, zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        budget = most_unpacked(size_of(file), _MAX_BYTES)
        for name, expected in arrays.items():
            info = members.get(f"{name}.npy")
            if info is None:
                raise DataFormatError(path, 0, f"an array '{name}'",
                                      f"{', '.join(archive.namelist()) or 'an empty archive':.200}")
            where = f"{path}: {name}"
            if info.file_size > budget:
                raise DataFormatError(where, 0, f"at most {budget} bytes", f"a claim of {info.file_size}")
            if info.compress_type not in _PACKINGS:
                raise DataFormatError(where, 0, "an undamaged array, stored or deflated",
                                      f"packing {info.compress_type}")
            budget -= info.file_size
            with archive.open(info) as raw:
                values[name] = _array(where, raw, info.file_size, expected)
            first = first_of.setdefault(expected.rows or name, name)
            if expected.rows and len(values[name]) != len(values[first]):
                raise DataFormatError(where, 0, f"{len(values[first])} {expected.rows}, as {first} has",
                                      len(values[name]))
    return values


def check_offsets(where: str, offsets: np.ndarray, total: int, least: int = 1) -> None:
    """Raises DataFormatError for offsets that do not climb from 0 to `total`, each by `least` or more."""
    steps = np.diff(offsets)
    if not len(steps) or offsets[0] != 0 or offsets[-1] != total or steps.min() < least:
        ends = f"{offsets[0]} to {offsets[-1]}, the smallest step {steps.min()}" if len(steps) else "none"
        raise DataFormatError(where, 0, f"offsets that climb from 0 to {total} by {least} or more", ends)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write arrays by name; returns the path.

    Raises:
        DataError: it cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return write_whole(path, content.getvalue())


def _array(where: str, raw: IO[bytes], size: int, expected: Expected) -> np.ndarray:
    """Read one array, after a check that its header claims no more than the file holds."""
    head = raw.read(_LONGEST_HEADER)
    shape, by_columns, dtype, start = _read_header(where, head)
    text = expected.dtype == "U"
    fits = dtype.kind == "U" and 0 < dtype.itemsize <= 4 * _WIDEST if text else dtype == np.dtype(expected.dtype)
    if not fits or len(shape) != expected.rank:
        raise DataFormatError(where, 0, expected, f"{dtype} of shape {shape}")
    if text and prod(shape) > _MOST_TEXTS:
        raise DataFormatError(where, 0, f"at most {_MOST_TEXTS} texts", prod(shape))
    claimed = prod(shape) * dtype.itemsize
    if claimed != size - start:
        raise DataFormatError(where, start, f"{claimed} bytes, as its header claims", size - start)
    content = np.zeros(claimed, np.uint8)
    got = len(head) - start
    content[:got] = np.frombuffer(head, np.uint8, got, start)
    while got < claimed and (part := raw.read(min(_CHUNK, claimed - got))):
        content[got:got + len(part)] = np.frombuffer(part, np.uint8)
        got += len(part)
    if got < claimed:
        raise DataFormatError(where, start + got, f"{claimed} bytes, as its header claims", got)
    content.flags.writeable = False
    if text and claimed:
        points = content.view(dtype.byteorder.replace("=", "<").replace("|", "<") + "u4")
        if points.max() > _LAST_CHARACTER:  # NumPy would make texts that Python cannot use
            raise DataFormatError(where, start, "characters of Unicode", f"number {points.max()}")
    values = content.view(dtype) if claimed else np.zeros(prod(shape), dtype)
    return np.ascontiguousarray(values.reshape(shape, order="F")) if by_columns else values.reshape(shape)


def map_npy(path: Path, expected: Expected) -> np.ndarray:
    """The array of an .npy file, read-only, whose values are read from disk as they are used.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: no .npy file, another dtype or rank, values by columns, none at all, pickled ones, or another
            number of bytes than its header claims. The message names the file.
    """
    with opened(path, ".npy file") as file:
        size = size_of(file)
        shape, by_columns, dtype, start = _read_header(str(path), file.read(_LONGEST_HEADER))
        if dtype != np.dtype(expected.dtype) or len(shape) != expected.rank:
            raise DataFormatError(path, 0, expected, f"{dtype} of shape {shape}")
        if by_columns:
            raise DataFormatError(path, 0, "values by rows", "values by columns (Fortran order)")
        claimed = prod(shape) * dtype.itemsize
        if claimed != size - start or not claimed:
            raise DataFormatError(path, start, f"{claimed} bytes, as its header claims" if claimed else "values",
                                  f"{size - start}")
        return np.memmap(file, dtype, "r", start, shape)


def _read_header(where: str, content: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """The header of an .npy array: shape, True if it is by columns, dtype, and the offset of the values.

    Raises:
        DataFormatError: the header is wrong; the message begins with `where`.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # headers of Python 2 are not supported
            shape, by_columns, dtype = read(stream)
    except _HEADER_ERRORS as error:
        text = str(error).splitlines() or ["no reason"]
        raise DataFormatError(where, 0, "an npy header", f"{type(error).__name__}: {text[0]:.200}") from error
    return shape, by_columns, dtype, stream.tell()
