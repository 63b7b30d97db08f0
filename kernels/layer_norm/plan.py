"""The number of threads for each width of a row: the settings of the CUDA kernels' compilation, as plain data."""

from __future__ import annotations

from typing import NamedTuple

_BLOCK = 128
"""Threads of a block whose rows need one warp or less."""


class Plan(NamedTuple):
    """The layout of a launch."""

    threads: int
    """Threads for a row."""
    chunks: int
    """Chunks of four values for each thread; 0 if a loop reads the row instead of keeping it."""
    vector: int
    """Values read at a time: 4 or 1."""
    blocks_per_processor: int
    """The largest number of blocks in the gradient's grid for each multiprocessor."""

    @property
    def wide(self) -> bool:
        """Whether the row is too wide for registers."""
        return self.chunks == 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return max(_BLOCK // self.threads, 1)

    @property
    def macros(self) -> dict[str, int]:
        """The macros with which the source is compiled."""
        if self.wide:
            return {"THREADS": self.threads}
        return {"THREADS": self.threads, "CHUNKS": self.chunks, "VECTOR": self.vector}


_LADDER = ((8, 1, 16), (16, 1, 16), (32, 1, 16), (32, 2, 16), (32, 4, 8), (128, 2, 8), (128, 4, 4), (256, 4, 4),
           (256, 8, 2))
"""Threads, chunks and blocks per multiprocessor; an entry holds threads * chunks * 4 values."""
_WIDE = Plan(512, 0, 1, 4)


def plan(width: int, vector: int) -> Plan:
    """The first entry of the table that holds a row of this width."""
    for threads, chunks, blocks in _LADDER:
        if width <= threads * chunks * 4:
            return Plan(threads, chunks, vector, blocks)
    return _WIDE


def every_setting() -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """All macros that `layer_norm.cu` and `wide.cu` are ever compiled with."""
    rows = [Plan(t, c, v, b).macros for t, c, b in _LADDER for v in (4, 1)]
    return rows, [_WIDE.macros]
