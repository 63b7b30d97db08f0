"""Images with some captions each: words as numbers, features that stay where they are until they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from duoln.errors import DataEntryError, UsageError
from duoln.tasks import Dataset

CAPTIONS = 5
"""The number of captions of each image of COCO, of Flickr8k and of the synthetic ones."""
END, UNKNOWN = 0, 1
"""The first rows of the table: the end of a sentence, and every word that is not in the vocabulary."""
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Sentences:
    """Sentences one after another."""

    flat: np.ndarray
    """int32 (words,): the words of all of them."""
    offsets: np.ndarray
    """int64 (sentences + 1,): sentence i is flat[offsets[i]:offsets[i + 1]]."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Sentences:
        """Sentences from lists of numbers."""
        lengths = np.fromiter((len(s) for s in sentences), np.int64, len(sentences))
        flat = np.fromiter((w for s in sentences for w in s), np.int32, int(lengths.sum()))
        return cls(flat, np.concatenate(([0], np.cumsum(lengths))))

    def first(self, count: int) -> Sentences:
        """The first so many."""
        return Sentences(self.flat[:self.offsets[count]], self.offsets[:count + 1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.flat[self.offsets[i]:self.offsets[i + 1]]


class Features:
    """Rows of image features, each divided by its Euclidean norm.

    Args:
        values: float32 or float16 (images, width), in memory or on disk.
        name: the file they are from, for errors.
    """

    def __init__(self, values: np.ndarray, name: object) -> None:
        self.values, self.name = values, name

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Some rows, float32 (positions, width).

        Raises:
            DataFormatError: one of them is all 0, or not finite: it has no direction.
        """
        rows = np.asarray(self.values[positions], np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        for k in np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))[:1]:
            raise DataEntryError(self.name, f"row {positions[k]}", "finite features, not all 0",
                                 f"a norm of {norms[k]:g}")
        array: np.ndarray = rows / norms[:, None].astype(np.float32)
        return array


class Part(NamedTuple):
    """A split: captions, image by image, of which each image has as many."""

    captions: Sentences
    features: Features

    @property
    def captions_each(self) -> int:
        """The number of captions of an image."""
        return len(self.captions) // len(self.features)


class Corpus(NamedTuple):
    """A corpus as a reader gives it."""

    dataset: Dataset
    parts: dict[str, Part]
    """The parts by the names of `SPLITS`; the captions' words are positions in `words`."""
    words: list[str]
    source: object
    """The file of the captions, for errors."""


class Words:
    """Numbers for words, in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, tokens: Iterable[str]) -> list[int]:
        """The words of a sentence."""
        return [self._numbers.setdefault(token, len(self._numbers)) for token in tokens]

    def list(self) -> list[str]:
        """All words so far."""
        return list(self._numbers)


def in_vocabulary(corpus: Corpus, rows: int) -> dict[str, Part]:
    """The parts with words as rows of the table: all words of train and dev, the most frequent first, from row 2 on.

    The words of dev have rows because the authors' code has it so; those that train lacks keep their first values.
    Words that are only in test are `UNKNOWN`. Words of equal frequency are in alphabetical order.

    Raises:
        UsageError: there are more of them than the table has rows.
    """
    seen = np.concatenate([corpus.parts[name].captions.flat for name in SPLITS[:2]])
    counts = np.bincount(seen, minlength=len(corpus.words))
    known = sorted(np.flatnonzero(counts).tolist(), key=lambda k: (-counts[k], corpus.words[k]))
    if len(known) + 2 > rows:
        raise UsageError(f"[order_embeddings] {corpus.source}: expected at most {rows} rows of the table, found "
                         f"{len(known)} words in train and dev, which need {len(known) + 2}: "
                         f"--set vocabulary={len(known) + 2}")
    row_of = np.full(len(corpus.words), UNKNOWN, np.int32)
    row_of[known] = np.arange(2, len(known) + 2)
    return {name: part._replace(captions=Sentences(row_of[part.captions.flat], part.captions.offsets))
            for name, part in corpus.parts.items()}
