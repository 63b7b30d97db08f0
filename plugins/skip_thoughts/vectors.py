"""Vocabulary expansion: word vectors of another model, mapped to ours by least squares (Kiros et al. 2015, 2.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from duoln.data import read_lines
from duoln.data.bounded import Unpacked, opened
from duoln.data.text import at_line
from duoln.errors import DataError, DataFormatError
from duoln.plugins.skip_thoughts.corpus import FIRST

_WIDEST = 4096
"""Values of the longest vector that is believed."""
_MOST_BYTES, _LONGEST_LINE = 1 << 34, 1 << 17
"""The vectors of Google News have 3.6 thousand million bytes, 1,200 each."""
_LONGEST_WORD = 1 << 10
_LONGEST_HEAD = 64


class Expansion(NamedTuple):
    """Words that the model does not know, with vectors for them."""

    words: list[str]
    vectors: np.ndarray
    """float32 (words, width of the model's vectors)."""
    fitted: int
    """Words that both sides know, on which the map was fitted."""


def read_vectors(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The vectors of some words from a file of word2vec: binary if the name ends in .bin or .bin.gz, else text.

    Text may be without its first line of two numbers. Words with "_" in them, which are phrases, are left out.

    Raises:
        DataError: the file cannot be read.
        DataFormatError: a vector of another width than the others, values that are no finite numbers, or no UTF-8; the
            message names the line, or in a binary file the byte.
    """
    wanted = {word for word in wanted if "_" not in word}
    if not path.name.removesuffix(".gz").endswith(".bin"):
        return _read_text(path, wanted)
    with opened(path, "file of word vectors") as raw:
        return _records(path, Unpacked(path, raw, _MOST_BYTES), wanted)


def _read_text(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    vectors: dict[str, np.ndarray] = {}
    width = 0
    for number, line in read_lines(path, _MOST_BYTES, _LONGEST_LINE):
        word, *values = line.rstrip(" ").split(" ")
        if number == 1 and len(values) == 1 and word.isdecimal() and values[0].isdecimal():
            try:
                width = _width(f"{path}: line 1", int(values[0]))
            except ValueError as error:  # Python reads no number of thousands of digits
                raise at_line(path, 1, "a width", f"{values[0][:40]}...") from error
            continue
        width = width or _width(f"{path}: line {number}", len(values))
        while len(values) > width and not _is_number(values[0]):  # a few words of GloVe 840B have spaces
            word += f" {values.pop(0)}"
        if len(values) != width:
            raise at_line(path, number, f"a word and {width} numbers", f"{len(values)} numbers after {word[:40]!r}")
        if word in wanted and word not in vectors:
            vectors[word] = _numbers(path, number, values)
    if not width:
        raise DataFormatError(path, 0, "at least one vector", "none")
    return vectors


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: Path, number: int, values: Sequence[str]) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError:
        vector = np.full(1, np.nan)
    if not np.isfinite(vector).all():
        raise at_line(path, number, "finite numbers after a word", " ".join(values)[:40])
    return vector


def _width(where: str, width: int) -> int:
    if not 1 <= width <= _WIDEST:
        raise DataFormatError(where, 0, f"vectors of 1 to {_WIDEST} numbers", width)
    return width


def _records(path: Path, file: IO[bytes], wanted: Collection[str]) -> dict[str, np.ndarray]:
    head = file.readline(_LONGEST_HEAD)
    parts = head.split()
    if len(parts) != 2 or not all(p.isdigit() for p in parts) or not head.endswith(b"\n"):
        raise DataFormatError(path, 0, "a line of two numbers, words and width", repr(head[:40]))
    width, at = _width(str(path), int(parts[1])), len(head)
    vectors: dict[str, np.ndarray] = {}
    for _ in range(int(parts[0])):
        word = bytearray()
        while (byte := file.read(1)) not in (b" ", b""):
            if len(word) == _LONGEST_WORD:
                raise DataFormatError(path, at, f"a word of at most {_LONGEST_WORD} bytes and a space", "a longer one")
            word += byte
        vector = file.read(4 * width)
        if len(vector) < 4 * width:
            raise DataFormatError(path, at, f"{int(parts[0])} words with {width} numbers each", "the end of the file")
        at += len(word) + 1 + len(vector)
        text = bytes(word).lstrip(b"\n").decode("utf-8", "replace")  # a word of other bytes is not in the vocabulary
        if text in wanted and text not in vectors:
            values = np.frombuffer(vector, "<f4").astype(np.float32)
            if not np.isfinite(values).all():
                raise DataFormatError(path, at - len(vector), f"finite numbers for {text!r}", "others")
            vectors[text] = values
    return vectors


def expand(known: Sequence[str], table: np.ndarray, others: dict[str, np.ndarray]) -> Expansion:
    """Vectors for words that the table does not have.

    A map with an intercept from the others' vectors to the table's, by ordinary least squares over the words that both
    have.

    Args:
        known: the words of the table by number, the end and the unknown word first.
        table: (words, width).
        others: vectors of another model, by word.

    Raises:
        DataError: fewer words in common than the map has rows.
    """
    shared = [k for k, word in enumerate(known) if k >= FIRST and word in others]
    width = len(next(iter(others.values()))) if others else 0
    if not others or len(shared) <= width:
        raise DataError(f"[skip_thoughts] expected more than {width} words that both the vocabulary and the word "
                        f"vectors have, found {len(shared)}")
    left = _with_one(np.stack([others[known[k]] for k in shared]))
    matrix = np.linalg.lstsq(left, table[shared].astype(np.float64), rcond=None)[0]
    trained = set(known)
    words = [word for word in others if word not in trained]
    rows = np.stack([others[word] for word in words]) if words else np.zeros((0, width))
    return Expansion(words, (_with_one(rows) @ matrix).astype(np.float32), len(shared))


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate((x.astype(np.float64), np.ones((len(x), 1))), axis=1)
