"""The words that have a row in the table, and corpora in numbers of those rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from duoln.data.text import describe_unknown
from duoln.errors import DataError
from duoln.plugins.attentive_reader.corpus import Corpus, Ragged, Split
from duoln.plugins.attentive_reader.questions import is_entity

NIL, UNKNOWN = 0, 2
SPECIAL = 4
"""Rows before the words: padding, end of text, unknown, number; as the code behind the paper numbers them."""


class Vocabulary(NamedTuple):
    """The words of rows 4, 5, ... of a table."""

    words: list[str]
    rows: int
    """The number of rows of the table."""

    @property
    def entities(self) -> np.ndarray:
        """The rows of all @entityN."""
        return np.array([SPECIAL + k for k, word in enumerate(self.words) if is_entity(word)], np.int32)


def count_words(corpus: Corpus, source: object, rows: int, least: int) -> Vocabulary:
    """The words that passages and questions of the training set have at least `least` times, the most frequent first.

    All entities of the corpus are among them: they are places for names, and permuted in training.

    Args:
        corpus: the questions.
        source: where they are from, for a message.
        rows: of the table; those beyond the words are never read, and are classes that are never right.
        least: how often a word occurs that is known.

    Raises:
        DataError: the table has too few rows.
    """
    train = corpus.splits["train"]
    counts = np.bincount(np.concatenate((train.passages.values, train.questions.values)), minlength=len(corpus.words))
    order = np.argsort(-counts, kind="stable")
    words = [corpus.words[k] for k in order if counts[k] >= least or is_entity(corpus.words[k])]
    if len(words) + SPECIAL > rows:
        raise DataError(f"{source}: expected at most {rows - SPECIAL} words, as a table of {rows} rows has room for "
                        f"({SPECIAL} are special), found {len(words)} that occur {least} times or more or are "
                        f"entities; set table to {len(words) + SPECIAL}, or min_count higher")
    return Vocabulary(words, rows)


def encode(corpus: Corpus, vocabulary: Vocabulary) -> dict[str, Split]:
    """The splits with every word as its row of the table, or as `UNKNOWN`."""
    rows = _rows_of(corpus.words, vocabulary)

    def ragged(texts: Ragged) -> Ragged:
        return Ragged(rows[texts.values], texts.ends)

    return {name: Split(ragged(s.passages), ragged(s.questions), rows[s.answers], rows[s.most_frequent])
            for name, s in corpus.splits.items()}


def remark(splits: Mapping[str, Split], source: object) -> str:
    """A sentence about the share of unknown words in each split; see `describe_unknown`."""
    return describe_unknown(source, {name: float(np.mean(split.passages.values == UNKNOWN))
                                     for name, split in splits.items()})


def _rows_of(words: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    row = {word: SPECIAL + k for k, word in enumerate(vocabulary.words)}
    return np.array([row.get(word, UNKNOWN) for word in words], np.int32)
