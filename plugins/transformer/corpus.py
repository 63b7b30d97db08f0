"""Books as classes of characters, and which of them are for training, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.errors import DataError
from duoln.plugins.transformer.books import Books, of_texts, read_books
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED, absent, in_home, locate, original_or_made

Source = Literal["auto", "novels", "novels100", "made"]

PLACES = {"novels": ("books/novels.txt.gz",),
          "novels100": ("books/novels100.txt.gz", "books/novels100_heldout.txt.gz")}
"""The files of each corpus below a data folder, in the order in which "auto" looks; a second one has books for
validation and test alone."""
_CUTS = 0.9, 0.95
"""The shares at which a text of fewer than three books is cut."""


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
    return original_or_made(source, partial(_find, source, root), _made)


def _made() -> tuple[Dataset, Parts]:
    return Dataset("made books", "synthetic"), parts(of_texts(make_books(DATA_SEED)), None, "made books")


def _read(path: Path, held_out: Path | None) -> tuple[Dataset, Parts]:
    split = parts(read_books(path), None if held_out is None else read_books(held_out), path)
    return Dataset(f"{path.name.split('.')[0]}, {sum(map(len, split)):,} characters", "substitute"), split


def _find(source: Source, root: Path | None) -> Callable[[], tuple[Dataset, Parts]]:
    """The function that reads a corpus and the books held out beside it, if it has some."""
    names = tuple(PLACES) if source == "auto" else (source,)
    for name in names:
        files = locate(PLACES[name], root)
        if files is not None:
            return partial(_read, files[0], files[1] if len(files) > 1 else None)
    raise absent([PLACES[name][0] for name in names], root,
                 "put the text there, or name any plain text with --set corpus=FILE")


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


def make_books(seed: int, books: int = 6, sentences: int = 240) -> list[str]:
    """Synthetic books; a verb agrees with its subject. A line with `###` begins each; eight sentences are a line."""
    made = []
    for k in range(books):
        rng = Stream(seed, "transformer.books", step=k)
        subjects, many, where, when = (rng.child(name).integers(size, (sentences,)) for name, size in (
            ("subject", len(_SUBJECTS)), ("many", 2), ("where", len(_WHERE)), ("when", len(_WHEN))))
        lines = [f"{' '.join(_SUBJECTS[s][2 * m:2 * m + 2])} {_WHERE[w]}{_WHEN[t]}."
                 for s, m, w, t in zip(subjects, many, where, when, strict=True)]
        made.append("### A made book\n" + "".join(" ".join(lines[i:i + 8]) + "\n" for i in range(0, sentences, 8)))
    return made
