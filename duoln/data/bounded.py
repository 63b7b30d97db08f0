"""Reads files that may be hostile: only regular files, and no more bytes than a bound that is set before.

A packed file may hold `RATIO` times its own size, but `SMALL` bytes in any case and never more than its reader's cap.
No real file of duoln's tasks holds more than 9 times its size (the most is a tar archive of short questions). A packed
file that was made to exhaust the memory holds 1,000 times its size. Each reader states its cap, which is larger than
the largest real file of its kind.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from duoln.errors import DataError, DataFormatError, DataMissingError, DuolnError
from duoln.system.filesystem import file_kind

SMALL = 1 << 25
"""Any packed file may hold this many bytes."""
RATIO = 32
"""A packed file may hold its own size times this number."""
_GREATEST_RATIO = 1032
"""The largest ratio that DEFLATE reaches; a file that claims a larger one is damaged."""

GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
"""The errors of Python's gzip reader for a damaged stream, or one that is not gzip."""
CONTENT_ERRORS = (*GZIP_ERRORS, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, struct.error, NotImplementedError,
                  RuntimeError, ValueError, ArithmeticError, LookupError)
"""The errors of Python's readers of gzip, zip and tar for a file of another format, a damaged file, or one that is
encrypted or packed in an unknown way."""


def most_unpacked(size: int, most: int) -> int:
    """The bytes that a packed file of that size may hold if the reader's cap is `most`."""
    return min(most, _GREATEST_RATIO * size, max(SMALL, RATIO * size))


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading. A named pipe is refused at once.

    Raises:
        DataFormatError: it is something else.
        OSError: it cannot be opened.
    """
    try:  # the caller closes it
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except ValueError as error:  # the name has a zero byte
        raise DataError(f"{str(path)!r}: expected the name of a file, found one with a zero byte") from error
    try:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise DataFormatError(path, 0, "a regular file", file_kind(mode))
    except BaseException:
        file.close()
        raise
    return file


def size_of(file: BinaryIO) -> int:
    """The size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def opened(path: Path, kind: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading. An error that its content causes in the block becomes an error that names the
    file.

    Args:
        path: the file.
        kind: the expected kind of file, for errors, such as ".npz archive".

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read. DataFormatError: it is no regular file,
            or no undamaged one of its kind.
    """
    try:
        with open_regular(path) as file:
            yield file
    except DuolnError:
        raise
    except FileNotFoundError as error:
        raise DataMissingError(f"{path}: expected a file ({kind}), found nothing there") from error
    except CONTENT_ERRORS as error:
        raise DataFormatError(path, 0, f"an undamaged {kind}", f"{type(error).__name__}: {error!s:.200}") from error
    except OSError as error:
        if error.errno is None:  # no system call failed, so a decoder refused the content
            raise DataFormatError(path, 0, f"an undamaged {kind}", f"{type(error).__name__}: {error}") from error
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_whole(path: Path, most: int, kind: str) -> bytes:
    """The bytes of a file, at most `most`.

    Raises:
        as `opened`; DataFormatError: it has more.
    """
    with opened(path, kind) as file:
        size = size_of(file)
        if size <= most:
            content = file.read(size + 1)
            size = len(content)  # another process may write to it
    if size > most:
        raise DataFormatError(path, most, f"at most {most} bytes", size)
    return content


class Unpacked(io.BufferedReader):
    """The content of an open file, unpacked if it is gzipped, up to a bound that follows from its size.

    Reading raises DataFormatError where the file holds more than `most`, or is damaged gzip.

    Args:
        path: the file's name, for errors.
        file: the file, at its beginning.
        cap: the reader's; bytes.
    """

    def __init__(self, path: Path, file: BinaryIO, cap: int) -> None:
        size = size_of(file)
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self.most = most_unpacked(size, cap) if zipped else min(size, cap)
        """The most bytes that the content may have."""
        packed = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if zipped else file
        super().__init__(_Bounded(path, packed, self.most))


class _Bounded(io.RawIOBase):
    """A stream that raises an error if it has more bytes than a bound."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        self._path, self._file, self._most, self._at = path, file, most, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._convert_gzip_errors():  # after all allowed bytes, one more is read to see whether the stream ends
            content = self._file.read(min(len(buffer), max(self._most - self._at, 1)))
        self._check(self._at + len(content))
        self._at += len(content)
        buffer[:len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}[whence] + offset
        self._check(place)
        with self._convert_gzip_errors():
            self._at = self._file.seek(place)
        return self._at

    def _check(self, place: int) -> None:
        if place > self._most:
            raise DataFormatError(self._path, self._most, f"at most {self._most} bytes (unpacked, if it is packed)",
                                  "more")

    @contextmanager
    def _convert_gzip_errors(self) -> Iterator[None]:
        try:
            yield
        except GZIP_ERRORS as error:
            raise DataFormatError(self._path, self._at, "an undamaged gzip stream",
                                  f"{type(error).__name__}: {error}") from error
