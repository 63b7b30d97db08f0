"""Reads books from a plain text as classes of characters, a block at a time, so that the text is never stored whole."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.data import Unpacked, opened
from duoln.errors import DataError, DataFormatError
from duoln.plugins.transformer.alphabet import encode

_MOST_BYTES = 1 << 28
"""Of a text, unpacked; the 95 novels have 73 million."""
_BLOCK, _LONGEST_LINE = 1 << 20, 1 << 22
"""Bytes that are read at a time, and those of a line. A line is a paragraph."""
_TITLE = re.compile(r"^###.*\n", re.MULTILINE)
_EMPTY = re.compile(r"^[^\S\n]*\n", re.MULTILINE)


class Books(NamedTuple):
    """Books, one after another."""

    classes: np.ndarray
    """Of all characters: uint8 (characters,)."""
    starts: np.ndarray
    """Where each book begins, and the end: int64 (books + 1,)."""


def read_books(path: Path) -> Books:
    """The books of a plain text in UTF-8, gzipped or not: each begins after a line with `###`, which is no part of it.

    A text without such lines is one book. Empty lines are left out.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read, or has no book.
        DataFormatError: it is damaged gzip, too large, has too long a line, or is no UTF-8; the message names the byte.
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
    r"""A file's text in pieces of whole lines, each of which ends with `\n`."""
    rest, offset = b"", 0
    with opened(path, "text file") as raw:
        file = Unpacked(path, raw, _MOST_BYTES)
        while block := file.read(_BLOCK):
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise DataFormatError(path, offset, f"a line of at most {_LONGEST_LINE} bytes", "a longer one")
            if newline:
                yield _decoded(path, offset, lines + newline)
                offset += len(lines) + 1
    if rest:
        yield _decoded(path, offset, rest + b"\n")


def _decoded(path: Path, offset: int, lines: bytes) -> str:
    try:
        text = lines.decode()
    except UnicodeDecodeError as error:
        actual = f"byte {lines[error.start]:#04x}"
        raise DataFormatError(path, offset + error.start, "a text in UTF-8", actual) from error
    return (text if offset else text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n")
