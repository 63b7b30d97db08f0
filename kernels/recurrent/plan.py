"""The number of threads for each number of hidden units: the settings of the cell kernels on GPUs, as plain data."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from duoln.kernels.recurrent.cells import Norms

_LADDER = ((32, 1), (128, 1), (128, 2), (128, 4), (256, 4))
"""The threads, and the hidden units of each thread; an entry holds rows up to the product of both."""
METAL_LADDER = (*_LADDER, (512, 4), (512, 8))
"""The same of Metal's kernels."""
MOST_KEPT = 1024
"""Hidden units of rows whose values and gradients fit in registers; with twice as many an LSTM spills some."""
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


_WIDE = Plan(256, 1)
"""For LSTM and GRU above MOST_KEPT: values are read again where they are needed again."""
_RNN_WIDE = Plan(1024, 4)
"""For the RNN above MOST_KEPT: it has one value for each unit, which still fits in a register."""


@cache
def plan(hidden: int, cell: str = "") -> Plan:
    """The first entry of the table that holds a row of `hidden` units; that of wide rows for more than MOST_KEPT.

    Raises:
        ValueError: `hidden` is above MOST_HIDDEN.
    """
    if hidden > MOST_HIDDEN:
        raise ValueError(f"expected at most {MOST_HIDDEN} hidden units, found {hidden}")
    return next((Plan(*entry) for entry in _LADDER if hidden <= entry[0] * entry[1]),
                _RNN_WIDE if cell == "rnn" else _WIDE)


def norm_macros(cell: str, norm: str) -> dict[str, int]:
    """The macros of a variant: whether the gates are normalised, and, of an LSTM, the cell."""
    norms = Norms.of(cell, norm)
    return {"NORM_GATES": int(norms.gates), **({"NORM_CELL": int(norms.cell)} if cell == "lstm" else {})}
