"""Learning rates that change from update to update, for an optimizer's `learning_rate`.

A schedule is a function of the number of the update, which begins at 0. Where a schedule follows another one, it counts
from its own first update.

    rate = optim.linear_warmup(100, optim.cosine(1e-3, 900))
    optimizer = optim.AdamW(rate)
    rate(0), rate(100), rate(1000)      # 1e-5 nearly, 1e-3, 0.0
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from duoln.core import Tensor
from duoln.core.arguments import ABOVE_0, AT_LEAST_0, check_function, check_integer, check_number, described
from duoln.errors import DtypeError, UsageError

Schedule = Callable[[int], float]
"""The learning rate of an update, from its number, which begins at 0."""


def cosine(peak: float, updates: int, end: float = 0.0) -> Schedule:
    """Half a cosine from `peak` to `end` over so many updates (Loshchilov and Hutter 2017, eq. 5); then `end`.

        >>> rate = optim.cosine(0.1, updates=4)
        >>> [round(rate(update), 3) for update in range(6)]
        [0.1, 0.085, 0.05, 0.015, 0.0, 0.0]

    Raises:
        DtypeError: a rate is no number, or `updates` no integer. UsageError: a rate is below 0.
        ShapeError: there are no updates.
    """
    return _Cosine(check_number("cosine", "peak", peak, AT_LEAST_0), check_integer("cosine", "updates", updates, 1),
                   check_number("cosine", "end", end, AT_LEAST_0))


def linear_warmup(updates: int, then: float | Schedule) -> Schedule:
    """A linear rise over so many updates to the first rate of what follows, then that: a rate or a schedule.

    Update k of n has (k + 1) / (n + 1) of that rate, so no update is lost to a rate of 0.

        >>> rate = optim.linear_warmup(3, then=optim.cosine(0.1, updates=4))
        >>> [round(rate(update), 3) for update in range(5)]
        [0.025, 0.05, 0.075, 0.1, 0.085]

    Raises:
        DtypeError, UsageError, ShapeError: as `cosine`.
    """
    return _LinearWarmup(check_integer("linear_warmup", "updates", updates, 1),
                         _checked("linear_warmup", "then", then))


def piecewise(start: float | Schedule, changes: Mapping[int, float | Schedule]) -> Schedule:
    """A rate or schedule from the first update, and another one from each of these updates on.

        >>> rate = optim.piecewise(0.1, {3000: 0.01, 6000: 0.001})
        >>> rate(2999), rate(3000), rate(9999)
        (0.1, 0.01, 0.001)

    Raises:
        DtypeError: a rate is neither a number nor a function, or the changes are not by numbers of updates.
        UsageError: a rate is below 0, or the numbers do not rise. ShapeError: one is below 1.
    """
    if not isinstance(changes, Mapping):
        raise DtypeError(f"[piecewise] changes: expected rates by the updates at which they begin, found "
                         f"{described(changes)}")
    at = [check_integer("piecewise", "changes", update, 1) for update in changes]
    if sorted(set(at)) != at:
        raise UsageError(f"[piecewise] changes: expected numbers of updates that rise, found {at}")
    parts = [_checked("piecewise", "changes", rate) for rate in changes.values()]
    return _Piecewise(((0, _checked("piecewise", "start", start)), *zip(at, parts, strict=True)))


def exponential(start: float, end: float, updates: int) -> Schedule:
    """From `start` to `end` by one multiplier for each update, over so many updates; then `end`.

        >>> rate = optim.exponential(0.1, 0.001, updates=4)
        >>> [round(rate(update), 4) for update in range(6)]
        [0.1, 0.0316, 0.01, 0.0032, 0.001, 0.001]

    Raises:
        DtypeError: a rate is no number, or `updates` no integer. UsageError: a rate is not above 0.
        ShapeError: there are no updates.
    """
    return _Exponential(check_number("exponential", "start", start, ABOVE_0),
                        check_number("exponential", "end", end, ABOVE_0),
                        check_integer("exponential", "updates", updates, 1))


def steps(start: float, scale: float, every: int, times: int) -> Schedule:
    """A rate that is multiplied by `scale` after each `every` updates, so many times; then it stays.

        >>> rate = optim.steps(0.1, scale=0.5, every=2, times=2)
        >>> [rate(update) for update in range(6)]
        [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]

    Raises:
        DtypeError, UsageError: as `cosine`. ShapeError: `every` or `times` is below 1.
    """
    return _Steps(check_number("steps", "start", start, AT_LEAST_0),
                  check_number("steps", "scale", scale, AT_LEAST_0),
                  check_integer("steps", "every", every, 1),
                  check_integer("steps", "times", times, 1))


def schedule(function: Callable[[int], float], updates: int) -> Schedule:
    """A function of the update as a schedule, which a compiled step can follow; after so many updates the rate stays.

        >>> rate = optim.schedule(lambda update: 0.1 / (1 + update), updates=2)
        >>> [round(rate(update), 3) for update in range(4)]
        [0.1, 0.05, 0.033, 0.033]

    Raises:
        DtypeError: it is no function, or `updates` no integer. ShapeError: there are no updates.
    """
    check_function("schedule", "function", function)
    return _OfFunction(function, check_integer("schedule", "updates", updates, 1))


def _checked(name: str, role: str, rate: float | Schedule) -> float | Schedule:
    return rate if callable(rate) else check_number(name, role, rate, AT_LEAST_0)


def _of(rate: float | Schedule, update: int) -> float:
    return rate(update) if callable(rate) else rate


# These are classes, not closures, so that an optimizer can be pickled, and equals its copy.

@dataclass(frozen=True)
class _Cosine:
    peak: float
    length: int
    end: float

    def __call__(self, update: int) -> float:
        share = min(update / self.length, 1.0)
        return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class _LinearWarmup:
    updates: int
    then: float | Schedule

    @property
    def length(self) -> int | None:
        return _length_after(self.updates, self.then)

    def __call__(self, update: int) -> float:
        if update < self.updates:
            return _of(self.then, 0) * (update + 1) / (self.updates + 1)
        return _of(self.then, update - self.updates)


@dataclass(frozen=True)
class _Piecewise:
    parts: tuple[tuple[int, float | Schedule], ...]

    @property
    def length(self) -> int | None:
        return _length_after(*self.parts[-1])

    def __call__(self, update: int) -> float:
        begin, rate = next(part for part in reversed(self.parts) if part[0] <= update)
        return _of(rate, update - begin)


@dataclass(frozen=True)
class _Exponential:
    start: float
    end: float
    length: int

    def __call__(self, update: int) -> float:
        return self.end if update >= self.length else self.start * (self.end / self.start) ** (update / self.length)


@dataclass(frozen=True)
class _Steps:
    start: float
    scale: float
    every: int
    times: int

    @property
    def length(self) -> int:
        return self.every * self.times

    def __call__(self, update: int) -> float:
        return self.start * self.scale ** min(update // self.every, self.times)


@dataclass(frozen=True)
class _OfFunction:
    function: Schedule
    length: int

    def __hash__(self) -> int:
        return hash(self.length)  # the function need have none

    def __call__(self, update: int) -> float:
        return self.function(min(update, self.length))


def length_of(rate: float | Schedule) -> int | None:
    """The number of the update from which on the rate stays; None where it is not known."""
    if isinstance(rate, _Cosine | _LinearWarmup | _Piecewise | _Exponential | _Steps | _OfFunction):
        return rate.length
    return None if callable(rate) else 0


def _length_after(updates: int, then: float | Schedule) -> int | None:
    length = length_of(then)
    return None if length is None else updates + length


@functools.lru_cache(maxsize=8)
def rates_of(schedule: Schedule, where: Any, dtype: str) -> Tensor:
    """The rates of all updates until the rate stays, as a tensor of one axis on the backend `where`."""
    length = length_of(schedule)
    assert length is not None
    rates = [check_number("optim", f"the learning rate at update {k}", schedule(k), AT_LEAST_0)
             for k in range(length + 1)]
    return Tensor(where.asarray(np.array(rates, dtype), dtype), where)
