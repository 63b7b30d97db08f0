"""Batches of questions: padded, with masks, and for training with permuted entities and the masks of dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.plugins.attentive_reader.corpus import NIL, Ragged, Split

Order = Literal["sequential", "by-length"]
LastBatch = Literal["dropped", "kept"]

_POOL = 8
"""Batches whose questions are sorted by length."""


def pad(texts: Ragged, rows: np.ndarray, multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """Some texts side by side, time-major: words int32 (T, B), and bool (T, B), where there are words.

    T is the longest's length and one more, as the code behind the paper pads, rounded up to a multiple.
    """
    starts, lengths = texts.ends[:-1][rows], texts.lengths[rows]
    steps = -(-(int(lengths.max()) + 1) // multiple) * multiple
    mask = np.arange(steps)[:, None] < lengths
    place = np.where(mask, starts + np.arange(steps)[:, None], 0)
    return np.where(mask, texts.values[place], NIL).astype(np.int32), mask


def as_batch(split: Split, rows: np.ndarray, multiple: int) -> Batch:
    """Some questions as the model takes them.

    Shape:
        passage int32 and passage_mask bool (T, B), question and question_mask (U, B), answer int32 (B,).
    """
    passage, passage_mask = pad(split.passages, rows, multiple)
    question, question_mask = pad(split.questions, rows, multiple)
    return {"passage": passage, "passage_mask": passage_mask, "question": question, "question_mask": question_mask,
            "answer": split.answers[rows]}


class Dropout(NamedTuple):
    """The sizes of the dropout masks of a batch."""

    keep: float
    embedding: int
    hidden: int


class Training:
    """Training batches as a function of the step.

    Each has its own random bijection of all entities, applied to passages, questions and answers, so that an entity has
    no meaning outside its question. Questions that remain at the end of a pass are not used in it.

    Args:
        split: the questions.
        entities: the rows of the table that are entities.
        table, batch_size, seed, order, multiple: the settings; `multiple` is `pad_multiple`.
        dropout: None for none.
    """

    def __init__(self, split: Split, entities: np.ndarray, table: int, batch_size: int, seed: int, order: Order,
                 multiple: int, dropout: Dropout | None) -> None:
        if not 1 <= batch_size <= len(split.answers):
            raise UsageError(f"[attentive_reader] expected a batch_size between 1 and {len(split.answers)}, "
                             f"found {batch_size}")
        self.split, self.entities, self.table, self.batch_size, self.seed = split, entities, table, batch_size, seed
        self.order, self.multiple, self.dropout = order, multiple, dropout
        self.steps_per_epoch = len(split.answers) // batch_size
        self._epoch: tuple[int, np.ndarray] | None = None

    def __call__(self, step: int) -> Batch:
        """The batch of one step, counted from 0 over all passes."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(epoch))
        batch = as_batch(self.split, self._epoch[1][place], self.multiple)
        permuted = np.arange(self.table, dtype=np.int32)
        order = Stream(self.seed, "entities", step=step).permutation(len(self.entities))
        permuted[self.entities] = self.entities[order]
        batch |= {name: permuted[batch[name]] for name in ("passage", "question", "answer")}
        if self.dropout:
            rng, (keep, embedding, hidden) = Stream(self.seed, "dropout", step=step), self.dropout
            shapes = {"keep_passage": (*batch["passage"].shape, embedding),
                      "keep_question": (*batch["question"].shape, embedding), "keep_joint": (self.batch_size, hidden)}
            batch |= {name: rng.child(name).uniform(shape) < keep for name, shape in shapes.items()}
        return batch

    def _order(self, epoch: int) -> np.ndarray:
        """The questions of each batch of a pass: (steps, batch_size)."""
        count = self.steps_per_epoch * self.batch_size
        if self.order == "sequential":
            return np.arange(count).reshape(-1, self.batch_size)
        rng = Stream(self.seed, "batches", epoch)
        rows = rng.permutation(len(self.split.answers))[:count]
        lengths, pool = self.split.passages.lengths, _POOL * self.batch_size
        pools = [rows[i:i + pool] for i in range(0, count, pool)]
        sorted_rows = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in pools])
        batches = sorted_rows.reshape(-1, self.batch_size)
        array: np.ndarray = batches[rng.child("batches").permutation(len(batches))]
        return array


def evaluation_split(split: Split, count: int | None, batch_size: int, multiple: int, last: LastBatch) -> Batch:
    """A split for evaluation: its first questions, with how they are to be cut into batches."""
    questions = len(split.answers) if count is None else min(count, len(split.answers))
    if last == "dropped":
        questions -= questions % batch_size
    passages, asked = (Ragged(t.values[:t.ends[questions]], t.ends[:questions + 1])
                       for t in (split.passages, split.questions))
    return {"passage": passages.values, "passage_ends": passages.ends, "question": asked.values,
            "question_ends": asked.ends, "answer": split.answers[:questions],
            "most_frequent": split.most_frequent[:questions], "cut": np.array([batch_size, multiple])}


def evaluation_batches(split: Batch) -> Iterator[Batch]:
    """An evaluated split batch by batch, in order, without permuted entities and without dropout."""
    whole = Split(Ragged(split["passage"], split["passage_ends"]), Ragged(split["question"], split["question_ends"]),
                  split["answer"], split["most_frequent"])
    size, multiple = (int(v) for v in split["cut"])
    for first in range(0, len(whole.answers), size):
        yield as_batch(whole, np.arange(first, min(first + size, len(whole.answers))), multiple)
