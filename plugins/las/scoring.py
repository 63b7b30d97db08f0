"""The distance between the recognised and the spoken text: edit distance, and the error rate over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from duoln.plugins.las.alphabet import LETTERS, TIMIT


class Edits(NamedTuple):
    """The fewest edits that turn the spoken text into the recognised one."""

    substitutions: int
    deletions: int
    insertions: int

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions


def edits(reference: Sequence[object], heard: Sequence[object]) -> Edits:
    """The fewest substitutions, deletions and insertions (Levenshtein 1966).

    Of several ways with equally few edits it takes the one with the most substitutions, and so with the fewest
    deletions and insertions; the lengths determine the difference of these two.
    """
    one = len(reference) + len(heard) + 1  # an edit; a substitution is one less, so that more of them break a tie
    row = [j * one for j in range(len(heard) + 1)]
    for i, a in enumerate(reference, start=1):
        before, row = row, [i * one]
        for j, b in enumerate(heard, start=1):
            row.append(min(before[j - 1] + (one - 1 if a != b else 0), before[j] + one, row[-1] + one))
    total = -(-row[-1] // one)
    substitutions = total * one - row[-1]
    insertions = (total - substitutions + len(heard) - len(reference)) // 2
    return Edits(substitutions, total - substitutions - insertions, insertions)


def error_rate(references: Sequence[Sequence[object]], heard: Sequence[Sequence[object]]) -> float:
    """(S + D + I) / N, summed over a corpus of at least one symbol; N counts the spoken symbols, without end marks."""
    wrong = sum(edits(a, b).total for a, b in zip(references, heard, strict=True))
    return wrong / sum(len(a) for a in references)


def rates(references: Sequence[np.ndarray], heard: Mapping[str, Sequence[np.ndarray]], phones: bool,
          ) -> dict[str, float]:
    """Error rates of several searches: `per` of symbols, and `wer` of words where the symbols are characters.

    Args:
        references: the classes of each utterance; classes after an end mark do not belong to it.
        heard: the results of each search; the key is the ending of the metric's name.
        phones: whether the symbols are phones.
    """
    alphabet = TIMIT if phones else LETTERS
    texts = [alphabet.decode(a) for a in references]
    error_rates = {}
    for name, search in heard.items():
        guesses = [alphabet.decode(a) for a in search]
        error_rates[f"per{name}"] = error_rate(texts, guesses)
        if not phones:
            error_rates[f"wer{name}"] = error_rate([words(t) for t in texts], [words(g) for g in guesses])
    return error_rates


def words(characters: Sequence[str]) -> list[str]:
    """Characters as words, parted by spaces."""
    return "".join(characters).split()
