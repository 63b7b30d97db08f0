"""Lines of handwriting as batches: offsets in standard units, the points that follow, and the text; synthetic lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.plugins.handwriting import corpus
from duoln.plugins.handwriting.corpus import ALPHABET, PADDING, Line
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, blame_missing_data, original_or_made
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
        as `original_or_made`. UsageError: more lines are requested than exist.
    """
    check_least("handwriting", cfg, length=1, text_length=1, evaluate_lines=1)
    (dataset, sets), why = original_or_made(cfg.source, partial(corpus.find_lines, root), _synthetic_lines)
    train, lines, batch_size = sets["train"], cfg.lines, cfg.batch_size
    with blame_missing_data(cfg.source, why):
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
    text = np.full((len(lines), text_length), PADDING, np.int32)
    for k, line in enumerate(lines):
        points = np.empty((min(len(line.pen_up), length + 1), 3), np.float32)
        points[:, :2] = (line.offsets[:len(points)] - MEAN) / DEVIATION
        points[:, 2] = line.pen_up[:len(points)]
        real = len(points) - 1
        x[:real, k], target[:real, k], mask[:real, k] = points[:-1], points[1:], True
        written = ALPHABET.encode(line.text[:text_length])
        text[k, :len(written)] = written
    return {"x": x, "target": target, "mask": mask, "text": text}


def _synthetic_lines() -> tuple[Dataset, dict[str, list[Line]]]:
    return Dataset("made strokes", "synthetic"), {
        split: make_lines(count, DATA_SEED, split)
        for split, count in (("train", MADE_TRAIN), ("valid", MADE_VALID), ("test", MADE_VALID))}


_ARC = 7
"""Points of a half circle."""


def _arc(x: float, y: float, rx: float, ry: float, start: float, stop: float) -> list[tuple[float, float]]:
    turns = np.linspace(start, stop, max(round(2 * _ARC * abs(stop - start)), 3)) * 2 * np.pi
    return [(x + rx * float(np.sin(t)), y - ry * float(np.cos(t))) for t in turns]


# Strokes in a box a unit high, y downwards: a few simple letters, enough to tell them apart.
LETTERS: dict[str, list[list[tuple[float, float]]]] = {
    "a": [_arc(.3, .7, .25, .3, .25, -.75), [(.55, .4), (.55, .7), (.6, 1.)]],
    "c": [_arc(.3, .7, .25, .3, .15, -.65)],
    "e": [[(.1, .7), (.3, .68), (.5, .66)], _arc(.3, .7, .22, .3, .25, -.65)],
    "i": [[(.1, .4), (.1, .7), (.15, 1.)], [(.1, .15), (.12, .2)]],
    "l": [[(.1, 0.), (.1, .3), (.1, .6), (.15, 1.)]],
    "n": [[(.1, .4), (.1, .7), (.1, 1.)], [*_arc(.3, .65, .2, .25, -.25, .25), (.5, 1.)]],
    "o": [_arc(.3, .7, .25, .3, 0., 1.)],
    "r": [[(.1, .4), (.1, .7), (.1, 1.)], _arc(.3, .65, .2, .25, -.25, .1)],
    "t": [[(.2, .1), (.2, .5), (.25, 1.)], [(.05, .4), (.2, .4), (.4, .4)]],
    "u": [[(.1, .4), *_arc(.3, .75, .2, .25, .75, .25), (.5, .4), (.52, 1.)]],
}
_WIDTH = 0.8
_HEIGHT = 180.0
"""The height of a line in units of the whiteboard: the offsets then have about IAM-OnDB's deviations."""


def make_lines(count: int, seed: int, split: str, words: int = 3) -> list[Line]:
    """Lines of random words of the made letters. The same for the same seed and split."""
    return [_line(Stream(seed, f"handwriting.made.{split}", step=k), f"made-{split}-{k:04d}", words)
            for k in range(count)]


def _line(rng: Stream, name: str, words: int) -> Line:
    letters = sorted(LETTERS)
    sizes = 2 + rng.integers(4, (words,))
    text = " ".join("".join(letters[i] for i in rng.integers(len(letters), (int(size),))) for size in sizes)
    slant, size = rng.uniform((2,), -0.2, 0.3), rng.uniform((), 0.8, 1.2)
    points: list[np.ndarray] = []
    ends: list[int] = []
    for k, character in enumerate(text):
        for stroke in LETTERS.get(character, []):
            here = np.array(stroke) + 0.02 * rng.gaussian((len(stroke), 2))
            here[:, 0] += _WIDTH * k + float(slant[0]) * (1 - here[:, 1])
            points.append(here)
            ends += [0] * (len(stroke) - 1) + [1]
    whole = np.rint(np.concatenate(points) * _HEIGHT * size)
    offsets = np.diff(whole, axis=0, prepend=whole[:1]).astype(np.int16)
    return Line(name, text, offsets, np.array(ends, np.uint8))
