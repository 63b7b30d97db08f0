"""IDX, the format of MNIST: a reader that checks every claim of the file before it allocates, and a writer."""

from __future__ import annotations

import gzip
import struct
from math import prod
from pathlib import Path

import numpy as np

from duoln.data.bounded import Unpacked, most_unpacked, opened
from duoln.errors import DataError, DataFormatError
from duoln.system.paths import in_home

_UINT8 = 0x08
_CODES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_BYTES = 1 << 28
"""The largest size in bytes that is accepted. MNIST's training images have 47 million."""
_CHUNK = 1 << 20


def read_idx(path: str | Path, max_bytes: int = _MAX_BYTES) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, gzipped or not.

    Args:
        path: the file.
        max_bytes: the largest accepted size of the unpacked file.

    Raises:
        DataMissingError: the file is not there. DataError: it cannot be read.
        DataFormatError: wrong magic, dtype or dimensions, more or fewer bytes than claimed, damaged gzip. No more is
            allocated than the data in the file need, and no more than a file of that size may hold.
    """
    path = in_home(path)
    with opened(path, "IDX file") as raw:
        return _read(path, Unpacked(path, raw, max_bytes))


def _read(path: Path, file: Unpacked) -> np.ndarray:
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
    if offset + count > file.most:
        raise DataFormatError(path, 4, f"dimensions of at most {file.most - offset} bytes in all",
                              f"{' x '.join(map(str, shape))} = {count}")
    if count == 0 and prod(s for s in shape if s) > _MAX_BYTES:  # NumPy cannot make an empty array of these dimensions
        raise DataFormatError(path, 4, f"dimensions whose product without zeros is at most {_MAX_BYTES}",
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
    """Write unsigned bytes as IDX, gzipped if the name ends in .gz.

    Raises:
        DataError: another dtype or rank, or more bytes than `read_idx` takes of a file of that size.
    """
    if array.dtype != np.uint8 or not 1 <= array.ndim <= 4:
        raise DataError(f"[write_idx] expected uint8 of 1 to 4 axes, found {array.dtype} of shape {array.shape}")
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UINT8, array.ndim, *array.shape) + array.tobytes()
    path = in_home(path)
    written = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    most = _MAX_BYTES if written is content else most_unpacked(len(written), _MAX_BYTES)
    if len(content) > most:
        raise DataError(f"[write_idx] expected at most {most} bytes, which read_idx takes of a file of {len(written)}, "
                        f"found {len(content)}")
    path.write_bytes(written)
