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
    peak, length = check_number("cosine", "peak", peak, AT_LEAST_0), check_integer("cosine", "updates", updates, 1)
    return _Bounded(_cosine, length, (length, peak, check_number("cosine", "end", end, AT_LEAST_0)))


def _cosine(update: int, length: int, peak: float, end: float) -> float:
    return end + (peak - end) * (1 + math.cos(math.pi * (update / length))) / 2


def linear_warmup(updates: int, then: float | Schedule) -> Schedule:
    """A linear rise over so many updates to the first rate of what follows, then that: a rate or a schedule.

    Update k of n has (k + 1) / (n + 1) of that rate, so no update is lost to a rate of 0.

        >>> rate = optim.linear_warmup(3, then=optim.cosine(0.1, updates=4))
        >>> [round(rate(update), 3) for update in range(5)]
        [0.025, 0.05, 0.075, 0.1, 0.085]

    Raises:
        DtypeError, UsageError, ShapeError: as `cosine`.
    """
    updates, then = check_integer("linear_warmup", "updates", updates, 1), _checked("linear_warmup", "then", then)
    return _Piecewise(((0, _Bounded(_rise, updates, (updates, then))), (updates, then)))


def _rise(update: int, length: int, then: float | Schedule) -> float:
    return _of(then, 0) * (update + 1) / (length + 1)


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
    start, end = (check_number("exponential", name, rate, ABOVE_0) for name, rate in (("start", start), ("end", end)))
    length = check_integer("exponential", "updates", updates, 1)
    return _Bounded(_exponential, length, (length, start, end))


def _exponential(update: int, length: int, start: float, end: float) -> float:
    return end if update == length else start * (end / start) ** (update / length)


def steps(start: float, scale: float, every: int, times: int) -> Schedule:
    """A rate that is multiplied by `scale` after each `every` updates, so many times; then it stays.

        >>> rate = optim.steps(0.1, scale=0.5, every=2, times=2)
        >>> [rate(update) for update in range(6)]
        [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]

    Raises:
        DtypeError, UsageError: as `cosine`. ShapeError: `every` or `times` is below 1.
    """
    start, scale = (check_number("steps", name, x, AT_LEAST_0) for name, x in (("start", start), ("scale", scale)))
    every, times = (check_integer("steps", name, n, 1) for name, n in (("every", every), ("times", times)))
    return _Bounded(_steps, every * times, (every, start, scale))


def _steps(update: int, every: int, start: float, scale: float) -> float:
    return start * scale ** (update // every)


def schedule(function: Callable[[int], float], updates: int) -> Schedule:
    """A function of the update as a schedule, which a compiled step can follow; after so many updates the rate stays.

        >>> rate = optim.schedule(lambda update: 0.1 / (1 + update), updates=2)
        >>> [round(rate(update), 3) for update in range(4)]
        [0.1, 0.05, 0.033, 0.033]

    Raises:
        DtypeError: it is no function, or `updates` no integer. ShapeError: there are no updates.
    """
    check_function("schedule", "function", function)
    return _Bounded(function, check_integer("schedule", "updates", updates, 1))


def _checked(name: str, role: str, rate: float | Schedule) -> float | Schedule:
    return rate if callable(rate) else check_number(name, role, rate, AT_LEAST_0)


def _of(rate: float | Schedule, update: int) -> float:
    return rate(update) if callable(rate) else rate


# These are classes, not closures, so that an optimizer can be pickled, and equals its copy.

@dataclass(frozen=True)
class _Bounded:
    """`function(update, *settings)`, which stays from the update `length` on."""

    function: Callable[..., float]
    length: int
    settings: tuple[Any, ...] = ()

    def __hash__(self) -> int:
        return hash(self.length)  # a user's function need have none

    def __call__(self, update: int) -> float:
        return self.function(min(update, self.length), *self.settings)


@dataclass(frozen=True)
class _Piecewise:
    """Each part, a rate or a schedule, from its update on."""

    parts: tuple[tuple[int, float | Schedule], ...]

    @property
    def length(self) -> int | None:
        begin, last = self.parts[-1]
        length = length_of(last)
        return None if length is None else begin + length

    def __call__(self, update: int) -> float:
        begin, rate = next(part for part in reversed(self.parts) if part[0] <= update)
        return _of(rate, update - begin)


def length_of(rate: float | Schedule) -> int | None:
    """The number of the update from which on the rate stays; None where it is not known."""
    if isinstance(rate, _Bounded | _Piecewise):
        return rate.length
    return None if callable(rate) else 0


@functools.lru_cache(maxsize=8)
def rates_of(schedule: Schedule, where: Any, dtype: str) -> Tensor:
    """The rates of all updates until the rate stays, as a tensor of one axis on the backend `where`."""
    length = length_of(schedule)
    assert length is not None
    rates = [check_number("optim", f"the learning rate at update {k}", schedule(k), AT_LEAST_0)
             for k in range(length + 1)]
    return Tensor(where.asarray(np.array(rates, dtype), dtype), where)
