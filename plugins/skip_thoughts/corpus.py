"""Books as sentences of word numbers, and the vocabulary by frequency.

Words are split as in the Penn Treebank, whose splitting the paper's code applies (`word_tokenize` of NLTK). Punctuation
marks and n't, 's, 're, 've, 'll, 'd and 'm are separate words. A full stop belongs to the word before it, as in "Mr."
and "U.S.", except at the end of the sentence and before a closing quote or bracket. An apostrophe, hyphen, slash,
ampersand or full stop inside a word stays there: "o'clock", "and/or", "e.g.". Text that is already split does not
change, brackets written as -LRB- and -RRB- included. A typographic apostrophe is read as a plain one.

A sentence ends at a full stop, question or exclamation mark before white space and a capital, digit or opening quote,
unless the full stop belongs to a title or an initial.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from duoln.errors import DataError, DataFormatError

_TITLES = frozenset(("mr", "mrs", "ms", "dr", "st", "messrs", "prof", "rev", "capt", "col", "gen", "lieut", "sergt",
                     "hon", "esq", "jr", "sr", "no", "vol", "viz", "etc"))
# Marks that follow marks, and the space after them, are tried once: a text of marks alone takes no longer than others.
_END = re.compile(r"""(?:(?<![\w'])(?P<word>[\w']+)|(?<![\w'.!?]))(?P<mark>[.!?]++)["'”’)\]]*+\s++"""
                  r"""(?=["'“‘(\[]*[A-Z0-9])""")
_WORD = re.compile(r"""
    n't\b | \w+?(?=n't\b)                                # do n't
  | '(?:s|re|ve|ll|d|m|t|em|til|\d\ds?)\b                # it 's
  | (?<!\S)-[lr][rsc]b-(?!\S)                            # -LRB-
  | \w+ (?: (?: '(?!(?:s|re|ve|ll|d|m)\b)                # o'clock
            | \.?- | [/&@.]                              # good-natured and/or AT&T e.g
            | (?<=\d)[,:](?=\d) ) \w+ )*+                # 1,000 10:30
    (?: \.(?= [,;:] | '(?:s|d|ll)\b | \s++\S ) )?        # Mr. Brown
  | \.\.+ | --+ | ``|'' | \S""", re.VERBOSE | re.IGNORECASE)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, in order."""
    parts, start = [], 0
    for end in _END.finditer(paragraph):
        word = end["word"] or ""
        if end["mark"] == "." and (word.lower() in _TITLES or (len(word) == 1 and word.isupper() and word != "I")):
            continue
        parts.append(paragraph[start:end.end()].strip())
        start = end.end()
    parts.append(paragraph[start:].strip())
    return [sentence for sentence in parts if sentence]


def split_words(sentence: str) -> list[str]:
    """The words and marks of a sentence, in order."""
    return _WORD.findall(sentence.replace("’", "'"))


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
            for sentence in split_sentences(paragraph):
                for word in split_words(sentence.lower() if lower_case else sentence):
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
