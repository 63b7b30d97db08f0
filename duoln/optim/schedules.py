"""Learning rates that change from update to update, for an optimizer's `learning_rate`.

A schedule is a function of the number of the update, which begins at 0. Where a schedule follows another one, it counts
from its own first update.

    rate = optim.linear_warmup(100, optim.cosine(1e-3, 900))
    optimizer = optim.AdamW(rate)
    rate(0), rate(100), rate(1000)      # 1e-5 nearly, 1e-3, 0.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from duoln.core.arguments import AT_LEAST_0, check_integer, check_number, described
from duoln.errors import DtypeError, UsageError
from duoln.optim.optimizer import Schedule


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


def _checked(name: str, role: str, rate: float | Schedule) -> float | Schedule:
    return rate if callable(rate) else check_number(name, role, rate, AT_LEAST_0)


def _of(rate: float | Schedule, update: int) -> float:
    return rate(update) if callable(rate) else rate


# These are classes, not closures, so that an optimizer can be pickled, and equals its copy.

@dataclass(frozen=True)
class _Cosine:
    peak: float
    updates: int
    end: float

    def __call__(self, update: int) -> float:
        share = min(update / self.updates, 1.0)
        return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class _LinearWarmup:
    updates: int
    then: float | Schedule

    def __call__(self, update: int) -> float:
        if update < self.updates:
            return _of(self.then, 0) * (update + 1) / (self.updates + 1)
        return _of(self.then, update - self.updates)


@dataclass(frozen=True)
class _Piecewise:
    parts: tuple[tuple[int, float | Schedule], ...]

    def __call__(self, update: int) -> float:
        begin, rate = next(part for part in reversed(self.parts) if part[0] <= update)
        return _of(rate, update - begin)
