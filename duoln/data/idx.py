"""IDX, the format of MNIST: a reader that checks every claim of the file before it allocates, and a writer."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from duoln.errors import DataError, DataFormatError

_UINT8 = 0x08
_CODES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GREATEST_RATIO = 1032
"""How much DEFLATE can shrink at best: a file that claims more is lying."""
_CHUNK = 1 << 20


def read_idx(path: str | Path, max_bytes: int = 1 << 28) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, gzipped or not.

    Args:
        path: the file.
        max_bytes: the greatest size of the unpacked file that is believed.

    Raises:
        DataError: the file is not there or cannot be read.
        DataFormatError: wrong magic, dtype or dimensions, more or fewer bytes than claimed, damaged gzip.
            Nothing larger than the data that is really there is allocated.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not zipped:
                return _read(path, raw, size, max_bytes)
            with gzip.GzipFile(fileobj=raw) as unzipped:
                return _read(path, io.BufferedReader(unzipped), size * _GREATEST_RATIO, max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataFormatError(path, 0, "an undamaged gzip stream", f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read(path: Path, file: BinaryIO, possible: int, max_bytes: int) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise DataFormatError(path, 0, "an IDX magic number, 00 00 type dimensions", head.hex(" ") or "an empty file")
    code, ndim = head[2], head[3]
    if code != _UINT8:
        known = f"type {_CODES[code]}" if code in _CODES else f"type byte {code:#04x}"
        raise DataFormatError(path, 2, f"type byte {_UINT8:#04x} (unsigned byte)", known)
    if not 1 <= ndim <= 4:
        raise DataFormatError(path, 3, "1 to 4 dimensions", ndim)
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise DataFormatError(path, 4, f"{ndim} dimension sizes", f"{len(sizes)} bytes")
    shape = struct.unpack(f">{ndim}I", sizes)
    offset, count = 4 + 4 * ndim, prod(shape)
    if offset + count > min(possible, max_bytes):
        raise DataFormatError(path, 4, f"dimensions of at most {min(possible, max_bytes) - offset} bytes in all",
                              f"{' x '.join(map(str, shape))} = {count}")
    if count == 0 and prod(s for s in shape if s) > max_bytes:  # NumPy cannot hold such an empty array either
        raise DataFormatError(path, 4, f"dimensions whose product without zeros is at most {max_bytes}",
                              " x ".join(map(str, shape)))
    parts, got = [], 0
    while got < count and (part := file.read(min(_CHUNK, count - got))):
        parts.append(part)
        got += len(part)
    if got < count:
        raise DataFormatError(path, offset + got, f"{count} bytes of data", f"{got}")
    if file.read(1):
        raise DataFormatError(path, offset + count, "the end of the file", "more bytes")
    return np.frombuffer(b"".join(parts), np.uint8).reshape(shape)


def write_idx(path: str | Path, array: np.ndarray) -> None:
    """Write unsigned bytes as IDX, gzipped if the name ends in .gz."""
    if array.dtype != np.uint8 or not 1 <= array.ndim <= 4:
        raise DataError(f"[write_idx] expected uint8 of 1 to 4 axes, found {array.dtype} of shape {array.shape}")
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UINT8, array.ndim, *array.shape) + array.tobytes()
    path = Path(path)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
