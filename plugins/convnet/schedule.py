"""The decrease of the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


def linear_decay(rate: float, start: int, stop: int) -> Callable[[int], float]:
    """`rate` up to the update numbered `start`, then along a line to 0 at `stop`, and 0 from there on."""
    return partial(_decayed, rate, start, stop)


def _decayed(rate: float, start: int, stop: int, step: int) -> float:
    return rate * min(max((stop - step) / max(stop - start, 1), 0.0), 1.0)
