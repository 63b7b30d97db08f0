"""The norms of the family, and the number of threads for each width of a row on CUDA, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Norm(NamedTuple):
    """One norm of the family."""

    centred: bool = True
    """True if the mean is subtracted, as in layer norm; a bias may follow then."""
    residual: bool = False
    """True if the rows are sums of two arrays."""


LAYER = Norm()
_BLOCK = 128
"""Threads of a block whose rows need one warp or less."""


class Plan(NamedTuple):
    """The layout of a launch."""

    threads: int
    """Threads for a row."""
    chunks: int
    """Chunks of four values for each thread; 0 if a loop reads the row instead of keeping it."""
    vector: int
    """Values read at a time: 4 or 1; of 16 bits, 8, 4 or 1."""
    blocks_per_processor: int
    """The largest number of blocks in the gradient's grid for each multiprocessor."""
    storage: int = 0
    """The STORAGE number of the dtype, see storage.cuh."""
    norm: Norm = LAYER

    @property
    def wide(self) -> bool:
        """True if the row is too wide for registers."""
        return self.chunks == 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return max(_BLOCK // self.threads, 1)

    @property
    def macros(self) -> dict[str, int]:
        """The macros with which the source is compiled."""
        last = {"STORAGE": self.storage} if self.storage else {}
        if not self.norm.centred:
            last["CENTRED"] = 0
        if self.norm.residual:
            last["RESIDUAL"] = 1
        if self.wide:
            return {"THREADS": self.threads, **last}
        return {"THREADS": self.threads, "CHUNKS": self.chunks, "VECTOR": self.vector, **last}


_LADDER = ((8, 1, 16), (16, 1, 16), (32, 1, 16), (32, 2, 16), (32, 4, 8), (128, 2, 8), (128, 4, 4), (256, 4, 4),
           (256, 8, 2))
"""Threads, chunks and blocks per multiprocessor; an entry holds threads * chunks * 4 values."""
_WIDE = Plan(512, 0, 1, 4)


def plan(width: int, vector: int, storage: int = 0, norm: Norm = LAYER) -> Plan:
    """The first entry of the table that holds a row of this width.

    Args:
        width: values of a row.
        vector: the most values that can be read at a time: 8, 4 or 1.
        storage: in what they are stored.
        norm: which norm it is.
    """
    for threads, chunks, blocks in _LADDER:
        if width <= threads * chunks * 4:
            widest = 8 if storage and chunks > 1 else 4  # values of a 16-byte access, as far as a thread has them
            return Plan(threads, chunks, widest if vector >= widest else 1, blocks, storage, norm)
    return _WIDE._replace(storage=storage, norm=norm)
