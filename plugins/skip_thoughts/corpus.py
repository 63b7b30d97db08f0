"""Books as sentences of word numbers, and the vocabulary by frequency."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from duoln.errors import DataError, DataFormatError
from duoln.plugins.skip_thoughts import tokens

END, UNKNOWN, FIRST = 0, 1, 2
"""Numbers of the end of a sentence and of an unknown word, and of the most frequent one."""
MOST_BYTES = 1 << 34
"""BookCorpus has 4.7 thousand million bytes."""
_MOST_DIFFERENT = 1 << 22
"""Different words; BookCorpus has 1.3 million. Each takes some 150 bytes."""


class Corpus(NamedTuple):
    """The sentences of all books, one after another. Numbers are of the words of training, by frequency there."""

    name: str
    words: list[str]
    """The words by number: the end, the unknown word, then the most frequent ones."""
    numbers: np.ndarray
    """int32 (tokens,)."""
    starts: np.ndarray
    """int64 (sentences + 1,): where in `numbers` a sentence begins."""
    books: np.ndarray
    """int64 (books + 1,): the sentence with which a book begins."""

    @property
    def lengths(self) -> np.ndarray:
        """Words of each sentence: int64 (sentences,)."""
        return np.diff(self.starts)


def first_of_validation(first: int, last: int, valid_share: float) -> int:
    """The first sentence of a book that is left out of training: of its last ones, a share or three at least.

    Args:
        first: the sentence with which the book begins.
        last: the one after its last.
        valid_share: the share.
    """
    return last - max(round((last - first) * valid_share), min(3, last - first))


def make_corpus(name: str, books: Iterable[Iterable[str]], lower_case: bool,
                vocabulary: Sequence[str] | None = None, valid_share: float = 0.0) -> Corpus:
    """Split books into sentences and words, and number the words.

    Args:
        name: what the corpus is called.
        books: the paragraphs of each.
        lower_case: whether "The" and "the" are one word.
        vocabulary: words by number from `FIRST` on; all others are unknown. By default all that occur in training, the
            most frequent first, and of equally frequent ones the earliest.
        valid_share: the share of each book, at its end, that is not for training, so that its words are not counted.
            With 0 all sentences are for training.

    Raises:
        DataError: there is no sentence. DataFormatError: there are too many different words.
    """
    seen: dict[str, int] = {}
    flat, ends, firsts = array("i"), array("q", [0]), [0]
    for book in books:
        for paragraph in book:
            for sentence in tokens.sentences(paragraph):
                for word in tokens.words(sentence.lower() if lower_case else sentence):
                    flat.append(seen.setdefault(word, len(seen)))
                if len(seen) > _MOST_DIFFERENT:
                    raise DataFormatError(name, 0, f"at most {_MOST_DIFFERENT} different words", "more")
                if len(flat) > ends[-1]:
                    ends.append(len(flat))
        if len(ends) - 1 > firsts[-1]:
            firsts.append(len(ends) - 1)
    if len(firsts) < 2:
        raise DataError(f"{name}: expected at least one sentence, found none")
    numbers = np.frombuffer(flat, np.int32)
    if vocabulary is None:
        counts = np.zeros(len(seen), np.int64)
        for first, last in pairwise(firsts):
            end = ends[first_of_validation(first, last, valid_share) if valid_share else last]
            counts += np.bincount(numbers[ends[first]:end], minlength=len(seen))
        known = list(seen)
        vocabulary = [known[k] for k in np.argsort(-counts, kind="stable") if counts[k]]
    place = {word: k for k, word in enumerate(vocabulary, start=FIRST)}
    renumbered = np.array([place.get(word, UNKNOWN) for word in seen], np.int32)[numbers]
    return Corpus(name, ["<end>", "<unknown>", *vocabulary], renumbered, np.frombuffer(ends, np.int64),
                  np.array(firsts, np.int64))
