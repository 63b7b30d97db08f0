"""Lines of handwriting as batches: offsets in standard units, the points that follow, and the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.plugins.handwriting import alphabet, corpus
from duoln.plugins.handwriting.corpus import Line
from duoln.plugins.handwriting.made import make_lines
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, original_or_made, suited_to
from duoln.tasks.settings import check_least

Source = Literal["auto", "iam", "made"]
Order = Literal["sequential", "shuffled"]

MEAN = np.array([8.1852, 0.1243], np.float32)
DEVIATION = np.array([41.5577, 37.0368], np.float32)
"""The deviations of IAM-OnDB's offsets, as the code behind the paper has them."""
BATCH_AXES = {"x": 1, "target": 1, "mask": 1}
"""Points are time-major, texts are not."""
MADE_TRAIN, MADE_VALID = 96, 16


def splits(cfg: Any, root: Path | None) -> Splits:
    """Training batches, and the training, validation and test sets for evaluation.

    Of synthetic lines that nobody requested, the setting `lines` takes no more than there are.

    Raises:
        DataMissingError: the corpus was requested and is not available.
        DataError: a file is damaged.
        UsageError: more lines are requested than exist.
    """
    check_least("handwriting", cfg, length=1, text_length=1, evaluate_lines=1)
    (dataset, sets), why = original_or_made(cfg.source, partial(corpus.find_lines, root), _made)
    train, lines, batch_size = sets["train"], cfg.lines, cfg.batch_size
    with suited_to(cfg.source, why):
        if lines is not None:
            if cfg.source == "auto" and dataset.provenance == "synthetic":
                lines = min(lines, MADE_TRAIN)
            if not 1 <= lines <= len(train):
                raise UsageError(f"[handwriting] expected lines between 1 and {len(train)}, found {lines}")
            train = train[:lines]
        if not 1 <= batch_size <= len(train):
            raise UsageError(f"[handwriting] expected a batch_size between 1 and {len(train)}, found {batch_size}")
    longest = min(cfg.length, max(len(line.pen_up) - 1 for part in sets.values() for line in part))
    widest = min(cfg.text_length, max(len(line.text) for part in sets.values() for line in part))
    evaluation = {name: as_batch(part[:cfg.evaluate_lines], longest, widest)
                  for name, part in {**sets, "train": train}.items()}
    return Splits(dataset, _batches(train, batch_size, cfg.seed, cfg.order, longest, widest), len(train) // batch_size,
                  evaluation, (why,))


def _batches(lines: Sequence[Line], batch_size: int, seed: int, order: Order, length: int, text_length: int,
             ) -> Callable[[int], Batch]:
    """The batch of a step. All have one shape: nearly every batch of IAM-OnDB has a line that fills it."""
    count = len(lines)

    def batch(step: int) -> Batch:
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        if order == "sequential":
            chosen = positions % count
        else:
            epoch, place = divmod(step, count // batch_size)
            chosen = Stream(seed, "batches", epoch).permutation(count)[place * batch_size:(place + 1) * batch_size]
        return as_batch([lines[int(k)] for k in chosen], length, text_length)

    return batch


def as_batch(lines: Sequence[Line], length: int, text_length: int) -> Batch:
    """Lines side by side.

    Shape:
        x, target float32 (length, lines, 3): a point and the one after it, as offsets in standard units and the
        end-of-stroke bit; mask bool (length, lines): where there is a target; text int32 (lines, text_length).
    """
    x = np.zeros((length, len(lines), 3), np.float32)
    target, mask = np.zeros_like(x), np.zeros((length, len(lines)), bool)
    text = np.full((len(lines), text_length), alphabet.PADDING, np.int32)
    for k, line in enumerate(lines):
        points = np.empty((min(len(line.pen_up), length + 1), 3), np.float32)
        points[:, :2] = (line.offsets[:len(points)] - MEAN) / DEVIATION
        points[:, 2] = line.pen_up[:len(points)]
        real = len(points) - 1
        x[:real, k], target[:real, k], mask[:real, k] = points[:-1], points[1:], True
        written = alphabet.encode(line.text[:text_length])
        text[k, :len(written)] = written
    return {"x": x, "target": target, "mask": mask, "text": text}


def _made() -> tuple[Dataset, dict[str, list[Line]]]:
    return Dataset("made strokes", "synthetic"), {
        split: make_lines(count, DATA_SEED, split)
        for split, count in (("train", MADE_TRAIN), ("valid", MADE_VALID), ("test", MADE_VALID))}
