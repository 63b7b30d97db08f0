"""The decrease of the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


def linear_decay(rate: float, start: int, stop: int) -> Callable[[int], float]:
    """`rate` up to the update numbered `start`, then along a line to 0 at `stop`, and 0 from there on."""
    return partial(_decayed, rate, start, stop)


def _decayed(rate: float, start: int, stop: int, step: int) -> float:
    return rate * min(max((stop - step) / max(stop - start, 1), 0.0), 1.0)


def remark(updates: int, start: int, stop: int) -> str:
    """A sentence about a run of so many updates that does not end at `stop`; "" for others, and for a run that ends
    before the rate falls.
    """
    if updates > stop:
        return (f"the learning rate is 0 for the last {updates - stop:,} of {updates:,} updates: set decay_from and "
                "decay_to, which are numbers of updates, by the batch size and the epochs")
    if start < updates < stop:
        return (f"the learning rate ends at {_decayed(1.0, start, stop, updates):.0%} of its first value: "
                f"decay_to is {stop:,} and the run has {updates:,} updates")
    return ""
