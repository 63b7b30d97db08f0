"""Reads books from a plain text as classes of characters, a block at a time, so that the text is never stored whole."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.data import read_lines
from duoln.errors import DataError
from duoln.plugins.transformer.alphabet import encode

_MOST_BYTES = 1 << 28
"""The largest size of a text, unpacked; the 95 novels have 73 million bytes."""
_BLOCK, _LONGEST_LINE = 1 << 10, 1 << 22
"""Lines that are taken at a time, and the bytes of one. A line is a paragraph."""
_TITLE = re.compile(r"^###.*\n", re.MULTILINE)
_EMPTY = re.compile(r"^[^\S\n]*\n", re.MULTILINE)


class Books(NamedTuple):
    """Books, one after another."""

    classes: np.ndarray
    """The classes of all characters: uint8 (characters,)."""
    starts: np.ndarray
    """The first character of each book, and the end: int64 (books + 1,)."""


def read_books(path: Path) -> Books:
    """The books of a plain text in UTF-8, gzipped or not: each begins after a line with `###`, which is no part of it.

    A text without such lines is one book. Empty lines are left out.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read, or has no book.
        DataFormatError: it is damaged gzip, too large, has too long a line, or is no UTF-8; the message names the line.
    """
    books = of_texts(_blocks(path))
    if len(books.starts) < 2:
        raise DataError(f"{path}: expected at least one book, found none")
    return books


def of_texts(texts: Iterable[str]) -> Books:
    """The books of a text that comes in pieces of whole lines."""
    classes, starts = bytearray(), array("q", [0])
    for text in texts:
        lines = _EMPTY.sub("", text)
        at = 0
        for title in _TITLE.finditer(lines):
            classes += encode(lines[at:title.start()]).tobytes()
            at = title.end()
            if len(classes) > starts[-1]:
                starts.append(len(classes))
        classes += encode(lines[at:]).tobytes()
    if len(classes) > starts[-1]:
        starts.append(len(classes))
    return Books(np.frombuffer(classes, np.uint8), np.array(starts, np.int64))


def _blocks(path: Path) -> Iterator[str]:
    """A file's text in pieces of whole lines, each of which ends with a newline."""
    lines = (line for _, line in read_lines(path, _MOST_BYTES, _LONGEST_LINE))
    while block := list(islice(lines, _BLOCK)):
        yield "\n".join([*block, ""]).replace("\r", "\n")
