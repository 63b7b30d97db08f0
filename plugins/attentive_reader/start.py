"""The initial weights of the reader: as in the code behind the paper, or each on its own."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.nn import init

Start = Literal["paper", "glorot"]

_SHRINK = 0.05


class Weights(NamedTuple):
    """The initialisers of a start."""

    lstm: init.Initializer
    """For the LSTMs, gate by gate, the bilinear match and the passage's side of the attention."""
    dense: init.Initializer
    """For all other matrices."""
    score: init.Initializer
    """For the vector that makes a score of the attention's tanh."""
    table: init.Initializer
    """For the table of words."""


def _anew(rng: Stream) -> Stream:
    """The same stream for every weight, as if the generator were seeded again before each matrix."""
    return Stream(rng.seed, "attentive_reader.start")


def _uniform(rng: Stream, shape: init.Shape) -> np.ndarray:
    return init.uniform(sqrt(6.0 / (sum(shape) + 1)))(_anew(rng), shape)


def _shrunk_orthogonal(rng: Stream, shape: init.Shape) -> np.ndarray:
    """0.05 times an orthogonal matrix, where it is square; else uniform."""
    return _orthogonal(rng.seed, shape[0]) * np.float32(_SHRINK) if shape[0] == shape[1] else _uniform(rng, shape)


@lru_cache(maxsize=1)
def _orthogonal(seed: int, size: int) -> np.ndarray:
    """One draw, cached, because eighteen matrices are all this one."""
    return init.orthogonal(_anew(Stream(seed, "")), (size, size))


def _fan_in(rng: Stream, shape: init.Shape) -> np.ndarray:
    return init.uniform(1.0 / sqrt(shape[0]))(rng, shape)


def weights(start: Start) -> Weights:
    """The initialisers of that name.

    "paper": the generator is seeded again before every matrix, so that matrices of one shape and kind are equal: all
    gates of both LSTMs, the match and the passage's side of the attention; and likewise the other square ones.
    "glorot": every matrix is drawn separately, by Glorot's uniform; words are normal with deviation 0.5.
    """
    if start == "paper":
        return Weights(_shrunk_orthogonal, _uniform, lambda rng, shape: _fan_in(_anew(rng), shape), _uniform)
    return Weights(init.glorot, init.glorot, _fan_in, init.gaussian(0.5))
