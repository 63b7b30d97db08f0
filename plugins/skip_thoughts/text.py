"""Lines of a text file, plain or gzipped, read one by one; only a newline byte ends a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from duoln.data import Unpacked, opened
from duoln.errors import DataFormatError


class Cap(NamedTuple):
    """Bytes of a whole text, unpacked, and of its longest line that are believed."""

    whole: int
    line: int


BOOKS = Cap(1 << 34, 1 << 22)
"""BookCorpus has 4.7 thousand million bytes. A line is a paragraph, or a book in some copies."""


def read_lines(path: Path, cap: Cap = BOOKS, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without what ends them.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: damaged gzip, more than is believed, or bytes that are not of the encoding; the message names
            the line.
    """
    number = 0
    with opened(path, "text file") as raw:
        file = Unpacked(path, raw, cap.whole)
        while line := _line(path, file, number + 1, cap.line):
            number += 1
            yield number, _decoded(path, number, line, encoding).rstrip("\r\n")


def _line(path: Path, file: Unpacked, number: int, longest: int) -> bytes:
    try:
        line = file.readline(longest + 1)
    except DataFormatError as error:
        raise at_line(path, number, error.expected, error.actual, error.offset) from error
    if len(line) > longest:
        raise at_line(path, number, f"a line of at most {longest} bytes", "a longer one")
    return line


def at_line(path: Path, number: int, expected: object, actual: object, offset: int = 0) -> DataFormatError:
    """The error of a line; `offset` is the byte of the line."""
    return DataFormatError(f"{path}: line {number}", offset, expected, actual)


def _decoded(path: Path, number: int, line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        actual = f"bytes {error.object[error.start:error.start + 4]!r}"
        raise at_line(path, number, f"text in {encoding.upper()}", actual, error.start) from error
