"""The learning rate of each update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt

BETA2 = 0.98
"""Adam's second coefficient, as Xiong et al. 2020 have it."""


def inverse_root(rate: float, full: int, warm: bool) -> Callable[[int], float]:
    """`rate` at the update numbered `full` (counted from 1), and rate * sqrt(full / number) at those after it.

    Before it the rate rises along a line (`warm`: Xiong et al. 2020, eq. 1 and Vaswani et al. 2017, section 5.3), or is
    `rate` from the first update on. With `full` 0 the rate is always `rate`.
    """
    return partial(_rate, rate, full, warm)


def remark(updates: int, full: int, warm: bool) -> str:
    """A sentence about a run of so many updates that ends within its warm-up; "" about others."""
    return (f"the learning rate still rises at the last of {updates:,} updates: warmup is {full:,}"
            if warm and updates < full else "")


def _rate(rate: float, full: int, warm: bool, step: int) -> float:
    number = step + 1
    if number <= full:
        return rate * number / full if warm else rate
    return rate * sqrt(full / number) if full else rate
