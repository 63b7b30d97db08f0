"""The number of threads for each number of hidden units: the settings of the CUDA cell kernels, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_LADDER = ((32, 1), (128, 1), (128, 2), (128, 4), (256, 4), (512, 4), (1024, 4))
"""The threads, and the hidden units of each thread; an entry holds rows up to the product of both."""
MOST_HIDDEN = 4096
_ROWS_OF_A_WARP = 4


class Plan(NamedTuple):
    """The layout of a launch."""

    threads: int
    """Threads for a row of the batch."""
    units: int
    """Hidden units of each thread."""

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return _ROWS_OF_A_WARP if self.threads == 32 else 1

    def launch(self, batch: int) -> tuple[tuple[int], tuple[int, int]]:
        """The grid and the block for a batch of this size."""
        return (-(-batch // self.rows),), (self.threads, self.rows)

    def macros(self, **norms: int) -> dict[str, int]:
        """The macros with which the source is compiled."""
        return {"THREADS": self.threads, "UNITS": self.units, **norms}


def plan(hidden: int) -> Plan:
    """The first entry of the table that holds a row of `hidden` units.

    Raises:
        ValueError: `hidden` is above MOST_HIDDEN.
    """
    for threads, units in _LADDER:
        if hidden <= threads * units:
            return Plan(threads, units)
    raise ValueError(f"expected at most {MOST_HIDDEN} hidden units, found {hidden}")


def every_setting(norms: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """All sets of macros for a cell's source, given the settings of its norms."""
    return [Plan(*entry).macros(**n) for entry in _LADDER for n in norms]
