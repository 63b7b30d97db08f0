"""Books as classes of characters, and which of them are for training, validation and test."""

from __future__ import annotations

import string
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.data.text import Characters, read_books
from duoln.errors import DataError
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED, first_there, in_home, original_or_made

ALPHABET = Characters(string.ascii_letters + string.digits + " \n" + ".,;:!?'\"-()")
"""The 76 classes of characters that the model reads and writes."""
Source = Literal["auto", "novels", "novels100", "made"]

PLACES = {"novels": ("books/novels.txt.gz",),
          "novels100": ("books/novels100.txt.gz", "books/novels100_heldout.txt.gz")}
"""The files of each corpus below a data folder, in the order in which "auto" looks; a second one has books for
validation and test alone."""
_MOST_BYTES = 1 << 28
"""The largest size of a text, unpacked; the 95 novels have 73 million bytes."""
_BLOCK = 1 << 10
"""Lines that are in memory as text at a time."""
_CUTS = 0.9, 0.95
"""The shares at which a text of fewer than three books is cut."""


class Books(NamedTuple):
    """Books, one after another."""

    classes: np.ndarray
    """The classes of all characters: uint8 (characters,)."""
    starts: np.ndarray
    """The first character of each book, and the end: int64 (books + 1,)."""


class Parts(NamedTuple):
    """The classes of the characters of all books of a part, one after another: uint8 (characters,) each."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def load(source: Source, file: str | None, root: Path | None = None) -> tuple[tuple[Dataset, Parts], str]:
    """The texts of a corpus, and why they are synthetic books ("" where they are not).

    Args:
        source: "auto" is the novels where there are some, and synthetic books elsewhere.
        file: a plain text, instead of those that are looked for; with any source but "made".
        root: a folder that is searched before DUOLN_DATA.

    Raises:
        DataMissingError: a corpus was requested and is not available. DataError: a file is damaged or too short.
    """
    if file is not None and source != "made":
        return _read(in_home(file), None), ""
    return original_or_made(source, partial(_find, source, root), _synthetic_books)


def _synthetic_books() -> tuple[Dataset, Parts]:
    return Dataset("made books", "synthetic"), parts(as_classes(make_books(DATA_SEED)), None, "made books")


def _read(path: Path, held_out: Path | None) -> tuple[Dataset, Parts]:
    split = parts(load_books(path), None if held_out is None else load_books(held_out), path)
    return Dataset(f"{path.name.split('.')[0]}, {sum(map(len, split)):,} characters", "substitute"), split


def load_books(path: Path) -> Books:
    """The books of a plain text in UTF-8, gzipped or not, a block at a time: the text is never stored whole.

    Raises:
        DataError: there is no book. The rest as `read_books`.
    """
    books = as_classes(read_books(path, _MOST_BYTES))
    if len(books.starts) < 2:
        raise DataError(f"{path}: expected at least one book, found none")
    return books


def as_classes(books: Iterable[Iterable[str]]) -> Books:
    """Books as their characters; each line of a book ends with a newline. A book without lines is none."""
    classes, starts = bytearray(), array("q", [0])
    for book in books:
        lines = iter(book)
        while block := list(islice(lines, _BLOCK)):
            classes += ALPHABET.encode("\n".join([*block, ""])).tobytes()
        if len(classes) > starts[-1]:
            starts.append(len(classes))
    return Books(np.frombuffer(classes, np.uint8), np.array(starts, np.int64))


def _find(source: Source, root: Path | None) -> Callable[[], tuple[Dataset, Parts]]:
    """The function that reads a corpus and the books held out beside it, if it has some."""
    files = first_there(PLACES, tuple(PLACES) if source == "auto" else (source,), root,
                        "put the text there, or name any plain text with --set corpus=FILE").files
    return partial(_read, files[0], files[1] if len(files) > 1 else None)


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


_SUBJECTS = (("The captain", "sails", "The captains", "sail"), ("A robin", "sings", "Robins", "sing"),
             ("Mr. Grey", "waits", "The clerks", "wait"), ("The old dog", "barks", "Old dogs", "bark"))
"""Each has a subject in the singular with its verb, and in the plural with its verb."""
_WHERE = ("at sea", "in the garden", "by the house", "on the road")
_WHEN = ("", " today", " at last", " again")


def make_books(seed: int, books: int = 6, sentences: int = 240) -> list[list[str]]:
    """The lines of synthetic books, of eight sentences each; a verb agrees with its subject."""
    made = []
    for k in range(books):
        rng = Stream(seed, "transformer.books", step=k)
        subjects, many, where, when = (rng.child(name).integers(size, (sentences,)) for name, size in (
            ("subject", len(_SUBJECTS)), ("many", 2), ("where", len(_WHERE)), ("when", len(_WHEN))))
        lines = [f"{' '.join(_SUBJECTS[s][2 * m:2 * m + 2])} {_WHERE[w]}{_WHEN[t]}."
                 for s, m, w, t in zip(subjects, many, where, when, strict=True)]
        made.append([" ".join(lines[i:i + 8]) for i in range(0, sentences, 8)])
    return made
