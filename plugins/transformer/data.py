"""Windows of characters: random ones for training, and fixed ones, evenly apart, for validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.data.batches import check_range
from duoln.errors import DataError
from duoln.plugins.transformer import corpus
from duoln.plugins.transformer.corpus import ALPHABET
from duoln.tasks import Splits
from duoln.tasks.settings import check_least


class Windows:
    """The batch of an update: characters from random places of a text, and with each the one after it.

    Args:
        text: the classes, uint8 (characters,), more than `length`.
        length, batch_size, seed: the settings.
    """

    def __init__(self, text: np.ndarray, length: int, batch_size: int, seed: int) -> None:
        self._text, self._length, self._size, self._seed = text, length, batch_size, seed

    def __call__(self, step: int) -> Batch:
        """The batch of one update, counted from 0.

        Shape:
            x int32 (batch, length); y the same, one character on.
        """
        places = Stream(self._seed, "batches", step=step).integers(len(self._text) - self._length, (self._size,))
        return _windows(self._text, places, self._length)


def _windows(text: np.ndarray, places: np.ndarray, length: int) -> Batch:
    chosen = text[places[:, None] + np.arange(length + 1)].astype(np.int32)
    return {"x": chosen[:, :-1].copy(), "y": chosen[:, 1:].copy()}


def fixed_windows(text: np.ndarray, length: int, count: int) -> Batch:
    """At most `count` windows of a text, evenly apart; none shares a predicted character with another."""
    count = min(count, (len(text) - 1) // length)
    return _windows(text, np.arange(count) * ((len(text) - 1 - length) // max(count - 1, 1)), length)


def splits(cfg: Any, root: Path | None = None) -> Splits:
    """Training windows, and those that are evaluated, each set with how often each class is in the training text.

    Raises:
        UsageError: a length, a batch, an epoch or a number of windows below 1.
        DataError: a part of the text is shorter than a window. The rest as `corpus.load`.
    """
    check_least("transformer", cfg, length=1, batch_size=1, updates=1, windows=1)
    length, (dataset, parts), why = cfg.length, *corpus.load(cfg.source, cfg.corpus, root)
    for part, text in parts._asdict().items():
        if len(text) <= length:
            raise DataError(f"[transformer] {dataset.name}: expected more than {length} characters for {part}, as the "
                            f"length of a window is; found {len(text)}{why and f'; {why}'}")
        check_range(f"transformer: {part}", text, ALPHABET.classes)
    counts = np.bincount(parts.train, minlength=ALPHABET.classes).astype(np.int32)
    evaluation = {part: {**fixed_windows(text, length, cfg.windows), "counts": counts}
                  for part, text in (("valid", parts.valid), ("test", parts.test))}
    train = Windows(parts.train, length, cfg.batch_size, cfg.seed)
    return Splits(dataset, train, cfg.updates, evaluation, (why,))
