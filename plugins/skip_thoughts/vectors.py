"""Vocabulary expansion: word vectors of another model, mapped to ours by least squares (Kiros et al. 2015, 2.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from duoln.data.bounded import Unpacked, opened
from duoln.errors import DataError, DataFormatError
from duoln.plugins.skip_thoughts.corpus import FIRST

_WIDEST = 4096
"""Values of the longest vector that is believed."""
_MOST_BYTES = 1 << 34
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
    """The vectors of some words from a binary file of word2vec. Words with "_" in them, phrases, are left out.

    Raises:
        DataError: the file cannot be read. DataFormatError: it has another form, or values that are no finite numbers;
            the message names the byte.
    """
    wanted = {word for word in wanted if "_" not in word}
    with opened(path, "file of word vectors") as raw:
        return _records(path, Unpacked(path, raw, _MOST_BYTES), wanted)


def _records(path: Path, file: IO[bytes], wanted: Collection[str]) -> dict[str, np.ndarray]:
    head = file.readline(_LONGEST_HEAD)
    parts = head.split()
    if len(parts) != 2 or not all(p.isdigit() for p in parts) or not head.endswith(b"\n"):
        raise DataFormatError(path, 0, "a line of two numbers, words and width", repr(head[:40]))
    width, at = int(parts[1]), len(head)
    if not 1 <= width <= _WIDEST:
        raise DataFormatError(path, 0, f"vectors of 1 to {_WIDEST} numbers", width)
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
