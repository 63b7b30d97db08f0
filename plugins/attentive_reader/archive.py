"""The `.question` files below a folder or in a tar archive; every value is checked, and nothing is unpacked to disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from duoln.data import read_tar
from duoln.data.bounded import read_whole
from duoln.data.files import visible
from duoln.errors import DataFormatError, DataMissingError

SPLITS = {"training": "train", "validation": "valid", "test": "test"}
"""The folders of the distribution, and their names here."""
_ENDING = ".question"
_MAX_QUESTION = 1 << 17
"""Bytes of a question; those of CNN have some 4,000."""
_MAX_BYTES = 1 << 33
"""The largest size of an archive, unpacked; CNN's unpacks to some 2 thousand million bytes."""


class Member(NamedTuple):
    """One file: the split that it belongs to, where it is for a message, and its bytes."""

    split: str
    where: str
    content: bytes


def members(path: Path) -> Iterator[Member]:
    """The question files of a folder, in order of their names, or of a tar archive (gzip or not), in its order.

    Raises:
        DataMissingError: the path does not exist, or it holds no question file.
        DataError: a file cannot be read.
        DataFormatError: a truncated or damaged archive, a member whose path leads out of it, a link or device, a
            question that is too large or in none of the folders training, validation and test.
    """
    if not path.exists():
        raise DataMissingError(f"{path}: expected a folder or tar archive of {_ENDING} files, found nothing there")
    if path.is_dir():
        for file in visible(path.rglob(f"*{_ENDING}")):
            content = read_whole(file, _MAX_QUESTION, "question")
            yield Member(_split(file, PurePosixPath(file.relative_to(path).as_posix())), str(file), content)
    else:
        for place, where, content in read_tar(path, _MAX_BYTES, _MAX_QUESTION, _wanted):
            yield Member(_split(where, place), where, content)


def _wanted(place: PurePosixPath) -> bool:
    return place.suffix == _ENDING and not place.name.startswith(".")  # macOS puts ._NAME beside each NAME


def _split(where: object, place: PurePosixPath) -> str:
    if place.parent.name not in SPLITS:
        raise DataFormatError(where, 0, f"a question in a folder {', '.join(SPLITS)}", f"it in '{place.parent}'")
    return SPLITS[place.parent.name]
