"""The `.question` files below a folder or in a tar archive, of which nothing is believed and nothing is unpacked."""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from duoln.errors import DataError, DataFormatError, DataMissingError

SPLITS = {"training": "train", "validation": "valid", "test": "test"}
"""The folders of the distribution, and what they are called here."""
_ENDING = ".question"
_MAX_QUESTION = 1 << 20
_MAX_HEADER = 1 << 20
"""Bytes of a long name, or of other remarks on a member, that are believed."""
_BLOCK = 512
_ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, struct.error, ValueError, ArithmeticError,
                   LookupError)
"""What Python's readers of gzip and tar raise for a file that is none, or a damaged one."""


class Member(NamedTuple):
    """One file: the split that it belongs to, where it is for a message, and its bytes."""

    split: str
    where: str
    content: bytes


def members(path: Path) -> Iterator[Member]:
    """The question files of a folder, in order of their names, or of a tar archive (gzip or not), in its order.

    Raises:
        DataMissingError: there is nothing, or nothing in it.
        DataError: a file cannot be read.
        DataFormatError: a truncated or damaged archive, a member whose path leads out of it, a link or device, a
            question that is too large or in none of the folders training, validation and test.
    """
    if not path.exists():
        raise DataMissingError(f"{path}: expected a folder or tar archive of {_ENDING} files, found nothing there")
    try:
        yield from _of_folder(path) if path.is_dir() else _of_tar(path)
    except (DataError, GeneratorExit):
        raise
    except _ARCHIVE_ERRORS as error:
        raise DataFormatError(path, 0, "an undamaged tar archive, gzipped or not",
                              f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _of_folder(path: Path) -> Iterator[Member]:
    for file in sorted(path.rglob(f"*{_ENDING}")):
        with file.open("rb") as opened:
            content = opened.read(_MAX_QUESTION + 1)
        yield Member(_split(file, PurePosixPath(file.relative_to(path).as_posix())), str(file), _sized(file, content))


def _of_tar(path: Path) -> Iterator[Member]:
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if zipped else raw as file:
            bounded = _Bounded(path, file)
            with tarfile.TarFile(fileobj=bounded, mode="r") as archive:  # type: ignore[arg-type]
                while (info := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # or it would remember them all
                    where = f"{path}: {info.name!r}"
                    place = _safe(where, info)
                    if place.suffix == _ENDING and info.isreg():
                        if info.size > _MAX_QUESTION:
                            raise DataFormatError(where, 0, f"at most {_MAX_QUESTION} bytes", info.size)
                        content = archive.extractfile(info)
                        assert content is not None  # it is a regular file
                        yield Member(_split(where, place), where, content.read())
                _check_end(path, bounded, archive.offset)


def _safe(where: str, info: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member, once it is known to stay inside and to be a plain file or folder."""
    place = PurePosixPath(info.name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in place.parts[0:1]:
        raise DataFormatError(where, info.offset, "a path inside of the archive", "one that leads out of it")
    if info.issparse() or not (info.isreg() or info.isdir()):
        raise DataFormatError(where, info.offset, "plain files and folders", f"a member of type {info.type!r}")
    return place


def _split(where: object, place: PurePosixPath) -> str:
    if place.parent.name not in SPLITS:
        raise DataFormatError(where, 0, f"a question in a folder {', '.join(SPLITS)}", f"it in '{place.parent}'")
    return SPLITS[place.parent.name]


def _sized(where: object, content: bytes) -> bytes:
    if len(content) > _MAX_QUESTION:
        raise DataFormatError(where, _MAX_QUESTION, f"at most {_MAX_QUESTION} bytes", "more")
    return content


def _check_end(path: Path, file: _Bounded, offset: int) -> None:
    """Python's reader takes any block that is no header for the end; the end is a block of zeros."""
    file.seek(offset)
    found = file.read(_BLOCK)
    if found != bytes(_BLOCK):
        what = "another block" if len(found) == _BLOCK else f"the end of the file {len(found)} bytes on"
        raise DataFormatError(path, offset, "a member's header, or the block of zeros that ends an archive", what)


class _Bounded:
    """A file that refuses to be read in one go further than any header or question goes."""

    def __init__(self, path: Path, file: BinaryIO | gzip.GzipFile) -> None:
        self.path, self.file = path, file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= max(_MAX_HEADER, _MAX_QUESTION):
            raise DataFormatError(self.path, self.tell(), f"headers of at most {_MAX_HEADER} bytes", size)
        return self.file.read(size)
