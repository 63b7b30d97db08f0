"""A model of the time of a time step of a cluster's walk on an H100, from counted work and published latencies.

No GPU has confirmed it. `duoln bench survey` measures the exchange first (`device_limits/exchange.cu`), then the walks.
"""

from __future__ import annotations

from typing import NamedTuple

THREADS = 256
"""The threads of a block: a thread may then have 255 registers. With more threads it would have 128, and keep fewer
weights."""
EXCHANGE_CYCLES = 420
"""Cycles from a push to the end of the wait for it. 180 from one multiprocessor to another one are published for an
H100; the rest is the push, the count at the signal and the wait."""
ALONE_CYCLES = 120
"""Cycles of an exchange of a block with itself."""
PUSHED_BYTES = 11
"""Bytes that leave a block in a cycle: 2.65 TB/s of 132 multiprocessors (published for loads)."""
BARRIER_CYCLES = 40
ROW_CYCLES = {"forward": 300, "backward": 450}
"""Cycles of a warp for a row: exponentials, loads and stores."""
NORM_CYCLES = 300
"""Cycles of a warp for the exchange of a norm: sums over its lanes, then over the exchanged values of all blocks."""
PART_CYCLES = 8
"""Cycles to add one part of a product."""
_WARPS, _SCHEDULERS = THREADS // 32, 4


class Step(NamedTuple):
    """A time step of one cluster."""

    direction: str
    """"forward" or "backward"."""
    cluster: int
    rows: int
    each: int
    slices: int
    length: int
    """Inputs of a slice of the product."""
    kept: int
    """Those whose weights are in registers."""
    hidden: int
    norms: int
    """Exchanges of norms; one of the states comes on top."""

    @property
    def product(self) -> float:
        """Cycles of the product: it multiplies, or it reads shared memory, 128 bytes a cycle."""
        multiply = _WARPS * self.each * self.length * self.rows / _SCHEDULERS
        read = _WARPS * (self.length / 4 * self.rows + (self.length - self.kept) * self.each)
        return max(multiply, read)

    @property
    def exchange(self) -> float:
        """Cycles of one exchange."""
        return ALONE_CYCLES if self.cluster == 1 else EXCHANGE_CYCLES

    @property
    def pushed(self) -> float:
        """Cycles in which the states, or the parts of their gradients, leave a block."""
        copies = self.slices if self.direction == "backward" else 1
        return 0 if self.cluster == 1 else 4 * self.rows * self.hidden * copies / PUSHED_BYTES

    @property
    def cycles(self) -> float:
        """Cycles of the whole time step."""
        parts = self.slices * (self.cluster if self.direction == "backward" else 1)
        return (self.product + BARRIER_CYCLES + (1 + self.norms) * self.exchange + self.pushed
                + ROW_CYCLES[self.direction] + self.norms * NORM_CYCLES + parts * PART_CYCLES)
