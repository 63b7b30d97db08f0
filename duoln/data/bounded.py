"""Files of which nothing is believed: they are regular ones, and are read no further than a bound that is known before.

A packed file may hold `RATIO` times its own size, but `SMALL` bytes in any case and never more than its reader's cap.
Of the real files of duoln's tasks none holds more than 9 times its size (a tar archive of short questions); a packed
file that was made to exhaust the memory holds 1,000 times its size. A reader's cap lies above the largest real file of
its kind, and each reader states it.
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
from duoln.system.filesystem import kind_of

SMALL = 1 << 25
"""Bytes that any packed file may hold."""
RATIO = 32
"""How often its own size a packed file may hold."""
_GREATEST_RATIO = 1032
"""How much DEFLATE can shrink at best: a file that claims more is lying."""

GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
"""What Python's reader of gzip raises for a stream that is none, or a damaged one."""
CONTENT_ERRORS = (*GZIP_ERRORS, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, struct.error, NotImplementedError,
                  RuntimeError, ValueError, ArithmeticError, LookupError)
"""What Python's readers of gzip, zip and tar raise for a file that is none, a damaged one, or one that is encrypted
or packed in a way that they do not know."""


def most_unpacked(size: int, most: int) -> int:
    """Bytes that a packed file of that size may hold, where its reader's cap is `most`."""
    return min(most, _GREATEST_RATIO * size, max(SMALL, RATIO * size))


def open_regular(path: Path) -> BinaryIO:
    """A regular file, or a link to one, opened for reading. A named pipe is refused and not waited for.

    Raises:
        DataFormatError: it is something else.
        OSError: it cannot be opened.
    """
    try:  # the caller closes it
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except ValueError as error:  # a name with a zero byte
        raise DataError(f"{str(path)!r}: expected the name of a file, found one with a zero byte") from error
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise DataFormatError(path, 0, "a regular file", kind_of(mode))
    return file


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def opened(path: Path, kind: str) -> Iterator[BinaryIO]:
    """A regular file, open for reading. What its content makes a reader raise meanwhile becomes an error that names it.

    Args:
        path: the file.
        kind: what it has to be, such as ".npz archive".

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
        if error.errno is None:  # no system call failed: a decoder found the content to be wrong
            raise DataFormatError(path, 0, f"an undamaged {kind}", f"{type(error).__name__}: {error}") from error
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_whole(path: Path, most: int, kind: str) -> bytes:
    """The bytes of a file that has at most `most` of them.

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
    """What is in an open file, unpacked where it is gzipped; reading it never goes further than is believed of it.

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
        """Bytes that it may hold."""
        packed = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if zipped else file
        super().__init__(_Bounded(path, packed, self.most))


class _Bounded(io.RawIOBase):
    """A stream that ends in an error where it goes on beyond a bound."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        self._path, self._file, self._most, self._at = path, file, most, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._named():  # one byte beyond the bound is asked for, once all that is believed was handed out
            content = self._file.read(min(len(buffer), max(self._most - self._at, 1)))
        self._check(self._at + len(content))
        self._at += len(content)
        buffer[:len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}[whence] + offset
        self._check(place)
        with self._named():
            self._at = self._file.seek(place)
        return self._at

    def _check(self, place: int) -> None:
        if place > self._most:
            raise DataFormatError(self._path, self._most, f"at most {self._most} bytes (unpacked, if it is packed)",
                                  "more")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except GZIP_ERRORS as error:
            raise DataFormatError(self._path, self._at, "an undamaged gzip stream",
                                  f"{type(error).__name__}: {error}") from error
