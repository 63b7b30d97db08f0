"""Questions as numbers: each split's passages, questions and answers, and the words that have a row in the table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from duoln.data import read_tar
from duoln.data.bounded import most_unpacked, read_whole
from duoln.data.files import visible
from duoln.errors import DataError, DataFormatError, DataMissingError
from duoln.plugins.attentive_reader.questions import (
    Question,
    is_entity,
    most_frequent_entity,
    most_relevant,
    near_entities,
    parse,
    passage_questions,
)

LastToken = Literal["dropped", "kept"]

_MOST_WORDS = 1 << 30
"""The most words of all passages and questions; CNN's have some 300 million. An archive may have fewer by its size:
`within` makes many words of few."""
_MOST_DIFFERENT = 1 << 21
"""Different words; CNN has some 120,000."""


SPLITS = {"training": "train", "validation": "valid", "test": "test"}
"""The folders of the distribution, and their names here."""
_ENDING = ".question"
_MAX_QUESTION = 1 << 17
"""Bytes of a question; those of CNN have some 4,000."""
_MAX_BYTES = 1 << 33
"""The largest size of an archive, unpacked; CNN's unpacks to some 2 thousand million bytes."""


class Cut(NamedTuple):
    """The part of each text that is read."""

    sentences: int | None
    """The number of sentences of a passage, those nearest to the question; None is all."""
    window: int | None
    """The largest distance between a word of the shortened passage and an entity; None keeps all words."""
    last_token: LastToken
    """The last token of passages and questions."""

    def __call__(self, question: Question) -> tuple[list[str], list[str]]:
        """The words of the passage and of the question."""
        passage = question.passage
        if self.sentences is not None:
            passage = most_relevant(passage, question.question, self.sentences)
        if self.window is not None:
            passage = near_entities(passage, self.window) or passage[:1]  # no entity: something has to be read
        return self._shortened(passage), self._shortened(question.question)

    def _shortened(self, words: list[str]) -> list[str]:
        # A text of one word keeps it, because an empty text cannot be read.
        return words[:-1] if self.last_token == "dropped" and len(words) > 1 else words


class Ragged(NamedTuple):
    """Rows of words one after another; row k is `values[ends[k]:ends[k + 1]]`."""

    values: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends)


class Split(NamedTuple):
    """The questions of a split, in order of their names; every word is a number."""

    passages: Ragged
    questions: Ragged
    answers: np.ndarray
    most_frequent: np.ndarray
    """The entity that the whole passage names most often."""


class Corpus(NamedTuple):
    """Splits by name, and the words behind the numbers."""

    words: list[str]
    splits: Mapping[str, Split]


class _Rows:
    """Grows row by row, a number a word, however large the corpus is."""

    def __init__(self) -> None:
        self.values, self.ends = array("i"), array("q", [0])

    def append(self, row: Iterable[int]) -> None:
        self.values.extend(row)
        self.ends.append(len(self.values))

    def in_order(self, order: np.ndarray) -> Ragged:
        values, ends = np.frombuffer(self.values, np.int32), np.frombuffer(self.ends, np.int64)
        rows = [values[ends[k]:ends[k + 1]] for k in order]
        return Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64))


class Collector:
    """Questions of one corpus, added in any order.

    Args:
        cut: how much of each is kept.
        source: where they are from, for errors.
        most: words of all of them that are believed.
    """

    def __init__(self, cut: Cut, source: object = "questions", most: int = _MOST_WORDS) -> None:
        self.cut, self._source, self._most, self._count = cut, source, most, 0
        self._numbers: dict[str, int] = {}
        self._rows: dict[str, tuple[list[str], _Rows, _Rows, array[int], array[int]]] = {}

    def add(self, split: str, name: str, question: Question) -> None:
        """Add a question; questions are sorted by `name`.

        Raises:
            DataFormatError: with this question there are more words than the limit.
        """
        names, passages, questions, answers, frequent = self._rows.setdefault(
            split, ([], _Rows(), _Rows(), array("i"), array("i")))
        passage, asked = self.cut(question)
        self._count += len(passage) + len(asked)
        if self._count > self._most:
            raise DataFormatError(self._source, 0, f"questions of at most {self._most} words in all", "more")
        if len(self._numbers) > _MOST_DIFFERENT:
            raise DataFormatError(self._source, 0, f"at most {_MOST_DIFFERENT} different words", "more")
        names.append(name)
        passages.append(map(self._number, passage))
        questions.append(map(self._number, asked))
        answers.append(self._number(question.answer))
        frequent.append(self._number(most_frequent_entity(question.passage)))

    def corpus(self) -> Corpus:
        """All that was added."""
        splits = {}
        for split, (names, passages, questions, answers, frequent) in self._rows.items():
            order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
            splits[split] = Split(passages.in_order(order), questions.in_order(order),
                                  np.array(answers, np.int32)[order], np.array(frequent, np.int32)[order])
        return Corpus(list(self._numbers), splits)

    def _number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))


class Member(NamedTuple):
    """One file: the split that it belongs to, where it is for a message, and its bytes."""

    split: str
    where: str
    content: bytes


def members(path: Path) -> Iterator[Member]:
    """The question files of a folder, in order of their names, or of a tar archive (gzip or not), in its order.

    Raises:
        DataMissingError: the path does not exist, or it holds no question file.
        DataError: a file cannot be read.
        DataFormatError: a truncated or damaged archive, a member whose path leads out of it, a link or device, a
            question that is too large or in none of the folders training, validation and test.
    """
    if not path.exists():
        raise DataMissingError(f"{path}: expected a folder or tar archive of {_ENDING} files, found nothing there")
    if path.is_dir():
        for file in visible(path.rglob(f"*{_ENDING}")):
            content = read_whole(file, _MAX_QUESTION, "question")
            yield Member(_split(file, PurePosixPath(file.relative_to(path).as_posix())), str(file), content)
    else:
        for place, where, content in read_tar(path, _MAX_BYTES, _MAX_QUESTION, _wanted):
            yield Member(_split(where, place), where, content)


def _wanted(place: PurePosixPath) -> bool:
    return place.suffix == _ENDING and not place.name.startswith(".")  # macOS puts ._NAME beside each NAME


def _split(where: object, place: PurePosixPath) -> str:
    if place.parent.name not in SPLITS:
        raise DataFormatError(where, 0, f"a question in a folder {', '.join(SPLITS)}", f"it in '{place.parent}'")
    return SPLITS[place.parent.name]


def read(path: Path, cut: Cut, within_from: int | None = None) -> Corpus:
    """The questions of a folder or tar archive as Hermann et al. distribute them.

    Args:
        path: the folder or archive.
        cut: the length of the text that is read.
        within_from: train also on questions that training passages answer by themselves, see
            `questions.passage_questions`.

    Raises:
        DataError: see `members`. DataFormatError: see `questions.parse`; also no training or validation set.
    """
    size = 0 if path.is_dir() or not path.exists() else path.stat().st_size
    collector = Collector(cut, path, most_unpacked(size, _MOST_WORDS) if size else _MOST_WORDS)
    for member in members(path):
        question = parse(member.where, member.content)
        collector.add(member.split, member.where, question)
        if within_from is not None and member.split == "train":
            for k, made in enumerate(passage_questions(question.passage, within_from)):
                collector.add("train", f"{member.where} {k:04d}", made)
    corpus = collector.corpus()
    for folder, split in SPLITS.items():
        if split not in corpus.splits and split != "test":
            raise DataFormatError(path, 0, f"questions in {' and '.join(SPLITS)} (test may be missing)",
                                  f"none in {folder}")
    return corpus


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
    row = {word: SPECIAL + k for k, word in enumerate(vocabulary.words)}
    rows = np.array([row.get(word, UNKNOWN) for word in corpus.words], np.int32)

    def ragged(texts: Ragged) -> Ragged:
        return Ragged(rows[texts.values], texts.ends)

    return {name: Split(ragged(s.passages), ragged(s.questions), rows[s.answers], rows[s.most_frequent])
            for name, s in corpus.splits.items()}
