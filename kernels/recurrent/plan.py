"""The number of threads for each number of hidden units: the settings of the cell kernels on GPUs, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from duoln.kernels.recurrent.cells import Norms, fused_norms
from duoln.ops.recurrent.variants import CELLS

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


def wide_file(cell: str) -> str:
    """The source with a cell's kernels for more than MOST_KEPT units."""
    return "recurrent/rnn/rnn.cu" if cell == "rnn" else f"recurrent/{cell}/wide.cu"


def norm_macros(cell: str, norm: str) -> dict[str, int]:
    """The macros of a variant: whether the gates are normalised, and, of an LSTM, the cell."""
    norms = Norms.of(cell, norm)
    return {"NORM_GATES": int(norms.gates), **({"NORM_CELL": int(norms.cell)} if cell == "lstm" else {})}


def every_norm(cell: str) -> list[dict[str, int]]:
    """The macros of a cell's variants, each set once."""
    every = [norm_macros(cell, norm) for norm in fused_norms(cell)]
    return [macros for k, macros in enumerate(every) if macros not in every[:k]]


def every_plan(norms: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """The macros of rows up to MOST_KEPT units, given those of norms."""
    return [Plan(*entry).macros(**of_norms) for entry in _LADDER for of_norms in norms]


def every_setting() -> dict[str, list[dict[str, int]]]:
    """The cells' sources for time steps, each with all its sets of macros."""
    sources = {f"recurrent/{cell}/{cell}.cu": every_plan(every_norm(cell)) for cell in CELLS}
    for cell in CELLS:
        wide = [plan(MOST_HIDDEN, cell).macros(**norms) for norms in every_norm(cell)]
        sources[wide_file(cell)] = sources.get(wide_file(cell), []) + wide
    return sources
