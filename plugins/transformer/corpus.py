"""Books as classes of characters, and which of them are for training, validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln.data import cache_folder, data_folders
from duoln.errors import DataError, DataMissingError
from duoln.plugins.transformer import made
from duoln.plugins.transformer.books import Books, of_texts, read_books
from duoln.tasks import Dataset

Source = Literal["auto", "novels", "novels100", "made"]

PLACES = {"novels": "books/novels.txt.gz", "novels100": "books/novels100.txt.gz"}
"""Where below a data folder each corpus stands, in the order in which "auto" looks."""
HELD_OUT = {"novels100": "novels100_heldout.txt.gz"}
"""Books for validation and test alone, beside those of a corpus."""
_CUTS = 0.9, 0.95
"""Where a text of fewer than three books is cut."""


class Parts(NamedTuple):
    """The classes of the characters of all books of a part, one after another: uint8 (characters,) each."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def load(source: Source, file: str | None, seed: int, root: Path | None = None) -> tuple[Dataset, Parts]:
    """The texts of a corpus.

    Args:
        source: "auto" is the novels where there are some, and made books elsewhere.
        file: a plain text, instead of those that are looked for; with any source but "made".
        seed: of made books.
        root: a folder that is searched before DUOLN_DATA.

    Raises:
        DataMissingError: a corpus was requested and is not available. DataError: a file is damaged or too short.
    """
    path, held_out = _find(source, file, root)
    if path is None:
        return Dataset("made books", "synthetic"), parts(of_texts(made.make_books(seed)), None, "made books")
    split = parts(read_books(path), None if held_out is None else read_books(held_out), path)
    name = f"{path.name.split('.')[0]}, {sum(map(len, split)):,} characters"
    return Dataset(name, "substitute"), split


def _find(source: Source, file: str | None, root: Path | None) -> tuple[Path | None, Path | None]:
    """The corpus, None for made books, and the books held out beside it, if it has some."""
    if source == "made":
        return None, None
    if file is not None:
        return Path(file), None
    folders = [*([] if root is None else [root]), *data_folders(), cache_folder()]
    for name in PLACES if source == "auto" else [source]:
        for path in (folder / PLACES[name] for folder in folders):
            if path.is_file():
                return path, path.with_name(HELD_OUT[name]) if name in HELD_OUT else None
    if source == "auto":
        return None, None
    raise DataMissingError(f"{folders[0] / PLACES[source]}: not found; put the text there, or name any plain text "
                           "with --set corpus=FILE")


def parts(books: Books, held_out: Books | None, where: object) -> Parts:
    """Books parted by what they are for.

    The last book is for test and the one before it for validation; of books that are held out, the last is for test
    and all before it are for validation. A text of fewer books is cut: its last twentieth is for test, the one before
    that for validation.

    Raises:
        DataError: there is one book held out, where two are the least.
    """
    classes, starts = books
    if held_out is not None:
        if len(held_out.starts) < 3:
            raise DataError(f"{where}: expected at least two books held out beside it, for validation and test; "
                            "found one")
        valid, test = np.split(held_out.classes, held_out.starts[-2:-1])
        return Parts(classes, valid, test)
    if len(starts) < 4:
        return Parts(*np.split(classes, [round(len(classes) * share) for share in _CUTS]))
    return Parts(*np.split(classes, starts[-3:-1]))
