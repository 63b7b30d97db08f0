"""The sets on which codes are judged: SICK (pairs with a score); MR, CR, SUBJ and MPQA (sentences of two classes)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.data import Batch, read_lines
from duoln.data.text import at_line
from duoln.errors import DataFormatError
from duoln.plugins.skip_thoughts import made
from duoln.plugins.skip_thoughts.corpus import END, UNKNOWN, split_words
from duoln.plugins.skip_thoughts.made import Pair
from duoln.tasks.originals import DATA_SEED, first_there

LABELLED = {"mr": "rt-polarity.all.gz", "cr": "custrev.all.gz", "subj": "subj.all.gz", "mpqa": "mpqa.all.gz"}
PAIRS = ("SICK_train.txt.gz", "SICK_trial.txt.gz", "SICK_test_annotated.txt.gz")
NAMES = ("sick", *LABELLED)
FOLDER = "sentences"

_MOST_BYTES, _LONGEST_LINE = 1 << 23, 1 << 11
"""The largest set has 1.3 million bytes, its longest line 695."""
_MOST_LINES = 1 << 16
"""The largest set has 10,662. All sentences are in one array, which is as long as the longest sentence."""
_SCORE = re.compile(r"[0-9](\.[0-9]{1,9})?")
_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")


class TestSet(NamedTuple):
    """Sentences as words, and their classes or scores.

    For SICK `sentences` holds the first sentences of all pairs, then the second ones, and `parts` says whether a pair
    is for training (0), trial (1) or testing (2). For the other sets `parts` is empty.
    """

    name: str
    sentences: list[list[str]]
    answers: np.ndarray
    """float32 scores (pairs,), or int32 classes (sentences,)."""
    parts: np.ndarray
    """int32 (pairs,) or (0,)."""


def read_labelled(path: Path) -> list[tuple[str, int]]:
    """Sentences with their class: a line is 0 or 1, a space, and the sentence, in Latin-1.

    CR as it is distributed has lines without a word after the class; they are sentences without words.

    Raises:
        DataError: the file cannot be read.
        DataFormatError: a line of another form, or a file of one class; the message names the line.
    """
    labelled = []
    for number, line in read_lines(path, _MOST_BYTES, _LONGEST_LINE, "latin-1"):
        _check_count(path, number)
        label, space, sentence = line.partition(" ")
        if label not in ("0", "1") or not space:
            raise at_line(path, number, "0 or 1, a space and a sentence", repr(line[:40]))
        labelled.append((sentence, int(label)))
    if len({label for _, label in labelled}) < 2:
        raise DataFormatError(path, 0, "sentences of both classes, 0 and 1", f"{len(labelled)} lines of "
                              f"{f'class {labelled[0][1]} only' if labelled else 'none'}")
    return labelled


def read_pairs(path: Path) -> list[Pair]:
    """Pairs of SICK: a line of names, then tab-separated pair_ID, sentence_A, sentence_B, relatedness_score, judgment.

    Raises:
        DataError: the file cannot be read.
        DataFormatError: other columns, an empty sentence, or a score that is no number from 1 to 5; the message names
            the line.
    """
    lines = read_lines(path, _MOST_BYTES, _LONGEST_LINE)
    head = next(lines, (1, ""))[1].split("\t")
    if tuple(head[:len(_COLUMNS)]) != _COLUMNS:
        raise at_line(path, 1, f"the columns {', '.join(_COLUMNS)}", ", ".join(head)[:80] or "an empty line")
    pairs = []
    for number, line in lines:
        _check_count(path, number)
        cells = line.split("\t")
        if len(cells) < len(_COLUMNS):
            raise at_line(path, number, f"at least {len(_COLUMNS)} tab-separated columns", f"{len(cells)}")
        for cell in cells[1:3]:
            if not cell.strip():
                raise at_line(path, number, "two sentences", "an empty one")
        if not _SCORE.fullmatch(cells[3]) or not 1 <= float(cells[3]) <= 5:
            raise at_line(path, number, "a relatedness_score from 1 to 5", repr(cells[3][:40]))
        pairs.append(Pair(cells[1], cells[2], float(cells[3])))
    if not pairs:
        raise DataFormatError(path, 0, "at least one pair", "none")
    return pairs


def _check_count(path: Path, number: int) -> None:
    if number > _MOST_LINES:
        raise at_line(path, number, f"at most {_MOST_LINES} lines", "one more")


def load(names: Sequence[str], synthetic: bool, lower_case: bool, root: Path | None = None) -> list[TestSet]:
    """The sets of those names, from `sentences/` below the data folders, or synthetic.

    Raises:
        DataMissingError: one is not available. DataError: one is damaged.
    """
    def cut(sentence: str) -> list[str]:
        return split_words(sentence.lower() if lower_case else sentence)

    tests = []
    for name in names:
        if name == "sick":
            three = ([made.make_pairs(DATA_SEED, part) for part in PAIRS] if synthetic else
                     [read_pairs(_find(part, root)) for part in PAIRS])
            pairs = [pair for part in three for pair in part]
            tests.append(TestSet(name, [cut(p.first) for p in pairs] + [cut(p.second) for p in pairs],
                                 np.array([p.score for p in pairs], np.float32),
                                 np.repeat(np.arange(3, dtype=np.int32), [len(part) for part in three])))
            continue
        rows = made.make_labelled(DATA_SEED, name) if synthetic else read_labelled(_find(LABELLED[name], root))
        # First those of class 1, as the code behind the paper has them before it shuffles.
        rows = sorted(rows, key=lambda row: -row[1])
        tests.append(TestSet(name, [cut(sentence) for sentence, _ in rows], np.array([c for _, c in rows], np.int32),
                             np.zeros(0, np.int32)))
    return tests


def _find(name: str, root: Path | None) -> Path:
    return first_there({name: (f"{FOLDER}/{name}",)}, (name,), root,
                       "put it there; --set judge=none trains without judging codes").files[0]


def as_batch(test: TestSet, number: Mapping[str, int]) -> Batch:
    """A set in numbers of words; those that have none are unknown. SICK's sentences have their end, the others not.

    Shape:
        words int32 (sentences, longest), padded; lengths int32 (sentences,); answers, parts as in `TestSet`.
    """
    end = [END] if test.name == "sick" else []
    rows = [[number.get(word, UNKNOWN) for word in sentence] + end for sentence in test.sentences]
    words = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, numbers in zip(words, rows, strict=True):
        row[:len(numbers)] = numbers
    return {"words": words, "lengths": np.array([len(row) for row in rows], np.int32), "answers": test.answers,
            "parts": test.parts}


def coverage(test: TestSet, known: Mapping[str, int]) -> float:
    """The share of a set's words that have a number."""
    return float(np.mean([word in known for word in _all_words([test])]))


def vocabulary_of(tests: Sequence[TestSet]) -> set[str]:
    """Every word of some sets."""
    return set(_all_words(tests))


def _all_words(tests: Sequence[TestSet]) -> Iterator[str]:
    return (word for test in tests for sentence in test.sentences for word in sentence)
