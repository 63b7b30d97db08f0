"""Books as classes of characters, and which of them are for training, validation and test."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln.data import cache_folder, data_folders, read_text
from duoln.errors import DataError, DataMissingError
from duoln.plugins.transformer import made
from duoln.plugins.transformer.alphabet import encode
from duoln.tasks import Dataset

Source = Literal["auto", "novels", "novels100", "made"]

PLACES = {"novels": "books/novels.txt.gz", "novels100": "books/novels100.txt.gz"}
"""Where below a data folder each corpus stands, in the order in which "auto" looks."""
HELD_OUT = {"novels100": "novels100_heldout.txt.gz"}
"""Books for validation and test alone, beside those of a corpus."""
_MOST_BYTES = 1 << 28
"""Of a text, unpacked; the 95 novels have 73 million."""
_LAST_TENTH, _LAST_TWENTIETH = 0.9, 0.95
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
        return Dataset("made books", "synthetic"), parts(made.make_books(seed), [], "made books")
    books = read_books(path)
    split = parts(books, [] if held_out is None else read_books(held_out), path)
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


def read_books(path: Path) -> list[str]:
    """The books of a plain text, gzipped or not: each begins at a line with `###`, which is no part of it.

    A text without such lines is one book. Empty lines are left out.

    Raises:
        DataError: the file is missing or damaged, no UTF-8, or has no book.
    """
    parted = re.split(r"^###.*$", read_text(path, most=_MOST_BYTES), flags=re.MULTILINE)
    books = [re.sub(r"\n\s*\n", "\n", book).strip() for book in parted]
    books = [f"{book}\n" for book in books if book]
    if not books:
        raise DataError(f"{path}: expected at least one book, found none")
    return books


def parts(books: list[str], held_out: list[str], where: object) -> Parts:
    """Books parted by what they are for.

    The last book is for test and the one before it for validation; of books that are held out, the last is for test
    and all before it are for validation. A text of fewer books is cut: its last twentieth is for test, the one before
    that for validation.

    Raises:
        DataError: there is one book held out, where two are the least.
    """
    if len(held_out) == 1:
        raise DataError(f"{where}: expected at least two books beside it, for validation and test; found one")
    if held_out:
        train, valid, test = books, held_out[:-1], held_out[-1:]
    elif len(books) > 2:
        train, valid, test = books[:-2], books[-2:-1], books[-1:]
    else:
        text = "".join(books)
        cuts = [round(len(text) * share) for share in (0, _LAST_TENTH, _LAST_TWENTIETH, 1)]
        train, valid, test = ([text[first:last]] for first, last in pairwise(cuts))
    return Parts(*(np.concatenate([encode(book) for book in some]) for some in (train, valid, test)))
