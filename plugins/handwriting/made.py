"""Synthetic lines of handwriting: each character has a few strokes, which are bent and slanted a little at random."""

from __future__ import annotations

import numpy as np

from duoln import Stream
from duoln.plugins.handwriting.corpus import Line

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
