"""Reads files of a tar archive that may be hostile; nothing is unpacked to disk."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from duoln.data.bounded import Unpacked, opened
from duoln.errors import DataFormatError

_MAX_HEADER = 1 << 12
"""The most bytes of a long name, or of another remark on a member."""
_BLOCK = tarfile.BLOCKSIZE
_TYPE = 156
"""The byte of a header that gives the kind of its member."""
_REMARKS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG_NUMBER = re.compile(rb"\d{64}")


class Entry(NamedTuple):
    """One file: its path in the archive, that path for a message, and its bytes."""

    place: PurePosixPath
    where: str
    content: bytes


def read_tar(path: Path, cap: int, most: int, wanted: Callable[[PurePosixPath], bool]) -> Iterator[Entry]:
    """The wanted files of a tar archive (gzipped or not), in its order.

    Args:
        path: the archive.
        cap: bytes of all that is in it.
        most: bytes of a wanted file.
        wanted: whether the file of a path is wanted.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: a truncated or damaged archive, one that unpacks to more than is believed of its size, a member
            whose path leads out of it, a link or device, or a wanted file that is too large.
    """
    with opened(path, "tar archive, gzipped or not") as raw:
        limited = _Limited(path, Unpacked(path, raw, cap), max(most, _MAX_HEADER))
        with tarfile.TarFile(fileobj=cast("BinaryIO", limited), mode="r") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # else it would keep all of them
                where = f"{path}: {info.name!r}"
                place = _safe(where, info)
                if info.isreg() and wanted(place):
                    if info.size > most:
                        raise DataFormatError(where, info.offset, f"at most {most} bytes", info.size)
                    file = archive.extractfile(info)
                    assert file is not None  # it is a regular file
                    yield Entry(place, where, file.read())
            _check_end(path, limited, archive.offset)
            while limited.read(_BLOCK):  # the checksum of gzip follows the padding
                continue


def _safe(where: str, info: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member, after a check that it stays in the archive and is a plain file or folder."""
    place = PurePosixPath(info.name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in place.parts[0:1]:
        raise DataFormatError(where, info.offset, "a path inside of the archive", "one that leads out of it")
    if info.issparse() or not (info.isreg() or info.isdir()):
        raise DataFormatError(where, info.offset, "plain files and folders", f"a member of type {info.type!r}")
    return place


def _check_end(path: Path, file: _Limited, offset: int) -> None:
    """Python's reader treats any block without a header as the end; but the end is a block of zeros."""
    file.seek(offset)
    block = file.read(_BLOCK)
    if block != bytes(_BLOCK):
        what = "another block" if len(block) == _BLOCK else f"the end of the file {len(block)} bytes on"
        raise DataFormatError(path, offset, "a member's header, or the block of zeros that ends an archive", what)


class _Limited:
    """A file that refuses a single read that is larger than any header or wanted file."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        self._path, self._file, self._most = path, file, most
        self._remarks = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._most:
            raise DataFormatError(self._path, self.tell(), f"headers of at most {self._most} bytes", size)
        content = self._file.read(size)
        if self._remarks and (size > _MAX_HEADER or _LONG_NUMBER.search(content)):
            # Python's parser of remarks takes time that grows with the square of a number's length.
            raise DataFormatError(self._path, self.tell() - len(content),
                                  f"remarks on a member of at most {_MAX_HEADER} bytes and without long numbers",
                                  f"{content[:40]!r} and more")
        self._remarks = size == _BLOCK and content[_TYPE:_TYPE + 1] in _REMARKS
        return content
