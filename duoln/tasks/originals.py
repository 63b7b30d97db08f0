"""Finds the files of a corpus, whole or not at all, and decides when synthetic data stand in for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from duoln.data.files import packed_or_not, search_folders
from duoln.errors import DataError, DataMissingError, UsageError
from duoln.system.paths import in_home as in_home  # noqa: PLC0414 (for a path that a setting names)

T = TypeVar("T")

DATA_SEED = 0
"""The seed of all synthetic data. A run's own seed changes its training, never its data."""


def locate(names: Sequence[str], root: Path | None = None) -> list[Path] | None:
    """The files of a corpus in the first folder that has all of them; None where no folder has any.

    A name that ends in .gz is also found without this ending.

    Args:
        names: their places below a data folder.
        root: a folder that is searched before the others.

    Raises:
        DataError: no folder has all of them, but one has some, or a folder cannot be searched.
    """
    partial: tuple[Path, Path] | None = None
    for folder in search_folders(root):
        paths = [packed_or_not(folder / name) for name in names]
        present = [path for path in paths if path is not None]
        if len(present) == len(names):
            return present
        if present and partial is None:
            partial = folder / names[paths.index(None)], present[0]
    if partial is not None:
        raise DataError(f"{partial[0]}: missing, but {partial[1]} is there; expected {', '.join(names)}, all below one "
                        "folder: add what is missing, or remove the rest")
    return None


class FoundCorpus(NamedTuple):
    """A corpus that is there."""

    name: str
    home: Path
    """The data folder."""
    files: list[Path]


def first_there(places: Mapping[str, Sequence[str]], names: Sequence[str], root: Path | None,
                advice: str) -> FoundCorpus:
    """The first of some corpora whose files are there.

    Args:
        places: the files of each corpus below a data folder.
        names: the corpora, in the order in which they are looked for.
        root: a folder that is searched before the others.
        advice: what to do if none is there.

    Raises:
        DataMissingError: none is there. DataError: one is there in part.
    """
    for name in names:
        files = locate(places[name], root)
        if files is not None:
            return FoundCorpus(name, files[0].parents[len(Path(places[name][0]).parts) - 1], files)
    raise absent([file for name in names for file in places[name][:1]], root, advice)


def absent(names: Sequence[str], root: Path | None, advice: str) -> DataMissingError:
    """The error that says which files were looked for, in which folders, and what to do."""
    folders = ", ".join(f"{folder}{'' if folder.is_dir() else ' (no such folder)'}" for folder in search_folders(root))
    return DataMissingError(f"{' or '.join(names)}: not found below {folders}; {advice}. DUOLN_DATA names folders in "
                            "which data are looked for")


def original_or_made(source: str, find: Callable[[], Callable[[], T]], make: Callable[[], T]) -> tuple[T, str]:
    """A corpus from its files, or a synthetic one, and the reason for a synthetic one ("" for a corpus from files).

    Synthetic data stand in only if they were requested, or if the source is "auto" and nothing of the corpus is there.
    A damaged or incomplete corpus is an error.

    Args:
        source: the setting; "made" and "auto" have their meaning, every other value requests a corpus.
        find: finds the files, and returns the function that reads them.
        make: makes the data.

    Raises:
        DataMissingError: a corpus was requested, and is not there. DataError: a file is damaged or missing.
    """
    if source == "made":
        return make(), "synthetic data were requested (source=made)"
    try:
        read = find()
    except DataMissingError as error:
        if source != "auto":
            raise
        return make(), f"synthetic data stand in for it: {error}"
    return read(), ""


@contextmanager
def blame_missing_data(source: str, why: str) -> Iterator[None]:
    """In the block, settings that do not suit synthetic data that nobody requested are an error about missing data.

    Args:
        source: the setting.
        why: the reason of `original_or_made`.
    """
    try:
        yield
    except UsageError as error:
        if not why or source == "made":
            raise
        raise DataMissingError(f"{error}: {why}") from error
