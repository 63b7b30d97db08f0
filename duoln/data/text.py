"""Reads texts of the user's own, whole or line by line, and writes tables as CSV.

A mark of the byte order is never part of a text that is read.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from duoln.data.bounded import Unpacked, opened
from duoln.errors import DataError, DataFormatError, DtypeError, UsageError

_MOST_BYTES = 1 << 25
"""A text takes up to four bytes a character, and its lines are made again."""
_ASCII = 128
_TITLE, _LONGEST_PARAGRAPH = "###", 1 << 22
"""The bytes of a paragraph; some copies of BookCorpus have a book a line."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MOST_UNKNOWN = 0.5
"""The largest share of unknown words in a text. The 100 most frequent words of English are about half of any text, so a
vocabulary with fewer of its words is of another language, another case or another way to cut words."""


def read_text(path: Path, encoding: str = "utf-8", most: int = _MOST_BYTES) -> str:
    r"""The text of a file, or of a gzipped one, with `\n` at the end of each line, whatever ends them in the file.

    A mark of the byte order at the beginning is no part of the text.

    Args:
        path: the file.
        encoding: one that Python knows, such as "utf-8" or "latin-1".
        most: the most bytes that the file may have, unpacked.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: it is empty, larger than `most`, or no text in this encoding; the message names the first wrong
            byte.
        UsageError: there is no such encoding.
    """
    _check_encoding("read_text", encoding)
    with opened(path, "text") as raw:
        content = Unpacked(path, raw, most).read()
    if not content:
        raise DataFormatError(path, 0, "a text", "an empty file")
    return _decoded(path, content, encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, most: int, longest: int, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The lines of a file, or of a gzipped one, with their numbers from 1 and without what ends them.

    Only a newline byte ends a line. A mark of the byte order at the beginning is no part of the first line. The file is
    read as its lines are asked for.

    Args:
        path: the file.
        most: the most bytes that the file may have, unpacked.
        longest: the most bytes of a line.
        encoding: one in which a newline is the byte 10, such as "utf-8" or "latin-1".

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: damaged gzip, more than is believed, or no text in this encoding; the message names the line.
        UsageError: there is no such encoding.
    """
    _check_encoding("read_lines", encoding)
    return _lines(path, most, longest, encoding)


def _lines(path: Path, most: int, longest: int, encoding: str) -> Iterator[tuple[int, str]]:
    number = 0
    with opened(path, "text") as raw:
        file = Unpacked(path, raw, most)
        while line := _line(path, file, number + 1, longest):
            number += 1
            yield number, _decoded(f"{path}: line {number}", line, encoding, number == 1).rstrip("\r\n")


def read_books(path: Path, most: int) -> Iterator[Iterator[str]]:
    """The books of a plain text, each as its paragraphs (a line each), which are read as they are asked for.

    A book begins after a line that starts with `###`; a text without such lines is one book. Empty lines are left out.

    Args:
        path: the file.
        most: the most bytes that it may have, unpacked.

    Raises:
        DataMissingError, DataError, DataFormatError: as `read_lines`.
    """
    titles = 0

    def book_of(line: str) -> int:
        nonlocal titles
        titles += line.startswith(_TITLE)
        return titles

    for _, lines in groupby((line for _, line in read_lines(path, most, _LONGEST_PARAGRAPH)), book_of):
        yield (line for line in lines if line.strip() and not line.startswith(_TITLE))


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


class Characters:
    """The characters of an alphabet (ASCII) as classes 0, 1, ..., and one class more, `unknown`, for all others."""

    def __init__(self, characters: str) -> None:
        self.characters, self.unknown, self.classes = characters, len(characters), len(characters) + 1
        self._class_of = np.full(_ASCII + 1, self.unknown, np.uint8)  # the last entry is of all those above ASCII
        self._class_of[[ord(character) for character in characters]] = np.arange(self.unknown)

    def encode(self, text: str) -> np.ndarray:
        """The classes of a text, uint8 (characters,)."""
        numbers = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        classes: np.ndarray = self._class_of[np.minimum(numbers, _ASCII)]
        return classes

    def encode_strictly(self, task: str, text: str) -> np.ndarray:
        """The classes of a text that a user gives a task.

        Raises:
            UsageError: the text is empty or has a character outside the alphabet: no model can write `unknown`.
        """
        if not text:
            raise UsageError(f"[{task}] text: expected at least one character, found none")
        for position, character in enumerate(text):
            if character not in self.characters:
                raise UsageError(f"[{task}] text: expected characters of {self.characters!r}; found {character!r} at "
                                 f"position {position}")
        return self.encode(text)

    def decode(self, classes: Iterable[int]) -> str:
        """The characters of classes below `unknown`."""
        return "".join(self.characters[k] for k in classes)


def describe_unknown(where: object, shares: Mapping[str, float]) -> str:
    """A sentence about the words that a vocabulary does not have; "" if it has all.

    Args:
        where: the vocabulary or the corpus, for errors.
        shares: of the unknown among all words of a text, by the name of the text.

    Raises:
        DataError: more than half of the words of a text are unknown.
    """
    for name, share in shares.items():
        if share > _MOST_UNKNOWN:
            raise DataError(f"{where}: expected a vocabulary with most words of {name}, found {share:.1%} of them "
                            "unknown; is it of the same language and case, and does it have enough words?")
    unknown = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share)
    return f"words that are not in the vocabulary: {unknown}" if unknown else ""


def _check_encoding(name: str, encoding: str) -> None:
    if not isinstance(encoding, str):
        raise DtypeError(f"[{name}] encoding: expected a text, found {type(encoding).__name__}")
    try:
        b"a".decode(encoding, "ignore")
    except (LookupError, ValueError) as error:
        raise UsageError(f"[{name}] encoding: expected one of text that Python knows, such as utf-8 or latin-1; "
                         f"found {encoding!r}") from error


def _decoded(where: object, content: bytes, encoding: str, first: bool = True) -> str:
    """A text without the mark of the byte order, which stands at the head of the `first` bytes of a file."""
    mark = len(codecs.BOM_UTF8) if first and content.startswith(codecs.BOM_UTF8) else 0
    try:
        text = content[mark:].decode(encoding)
    except UnicodeDecodeError as error:
        actual = f"byte {error.object[error.start]:#04x}"
        if content.startswith(_UTF_16):
            actual += '; it begins as a text in UTF-16 does: give encoding="utf-16"'
        raise DataFormatError(where, mark + error.start, f"a text in {encoding}", actual) from error
    except UnicodeError as error:  # some codecs do not tell the place
        raise DataFormatError(where, 0, f"a text in {encoding}", str(error)) from error
    zero = text.find("\0")
    if zero >= 0:
        offset = mark + len(text[:zero].encode(encoding))
        raise DataFormatError(where, offset, f"a text in {encoding}", "a zero byte, which no text has")
    return text.removeprefix("\ufeff") if first else text


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""The rows as CSV. Readers take a carriage return for the end of a row, so a text with one stands in quotes.

    Python quotes the characters of the writer's own line end alone: rows are made with "\r\n", and end with "\n". Half
    of a character (a lone surrogate), which UTF-8 does not have, is written as its number.
    """
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines).encode(errors="backslashreplace").decode()
