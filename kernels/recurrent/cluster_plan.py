"""The division of a cluster's walk: blocks, rows, weights in registers and in shared memory; plain data.

A cluster of blocks keeps the recurrent weights for all time steps (`cluster_walk.cuh`). Of the plans that fit a device,
the one is taken whose time step should take the fewest cycles. These are counted work and latencies published for an
H100 (`_cycles`), which no GPU has confirmed; `duoln bench survey` measures the exchange first
(`device_limits/exchange.cu`), then the walks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil
from typing import NamedTuple

from duoln.kernels.recurrent.cells import FUSED, Fused
from duoln.ops.recurrent.variants import CELLS

THREADS = 256
"""Threads of a block: each may then have 255 registers. Of 512 each would have 128, and fewer of them for weights."""
_LANES = 32
CLUSTERS = (1, 2, 4, 8, 16)
"""Blocks of a cluster."""
_PORTABLE = 8
_ROWS = (1, 2, 4, 8)
_MOST_EACH, _MOST_SLICES = 8, 8
_WEIGHTS_IN_REGISTERS = {"forward": 132, "backward": 112}
"""The weights of a thread in registers; with more, some variant spills (`tests/kernels/test_nvrtc.py`)."""
_SUMS, _OUTPUTS, _UNITS = 4, 2, 1
"""Sums and outputs of a thread, and units of a lane, that the numbers above leave room for."""
_OF_A_SUM, _OF_AN_OUTPUT, _OF_A_UNIT = 3, 8, 24
"""Registers that each further one takes."""
_LEAST_REST = 16
"""Inputs in shared memory where not all weights are in registers: of fewer, a compiler keeps some in registers."""
_STATIC_SHARED, _RESERVED_SHARED = 48 << 10, 1 << 10
_GROUP = 18
"""Multiprocessors of a group of an H100 or H200 (a cluster lies within one), of which 16 are counted on."""


class Device(NamedTuple):
    """The properties of a device that a plan needs."""

    shared: int
    """Bytes of shared memory that a block may allocate."""
    active: tuple[int, ...]
    """The number of clusters of each size in CLUSTERS that run at once; 0 where one does not fit."""
    without: str = "the device has no clusters of blocks"
    """The reason if no size fits."""

    @classmethod
    def of(cls, major: int, multiprocessors: int, shared: int) -> Device:
        """The assumed properties of a device of a compute capability (9 Hopper, 10 to 12 Blackwell)."""
        most = 0 if major < 9 else 16 if major < 12 else _PORTABLE
        return cls(shared, tuple(max(multiprocessors // _GROUP * (16 // n), 1) if n <= most else 0 for n in CLUSTERS))

    def clusters(self, blocks: int) -> int:
        """The number of clusters of so many blocks that run at once."""
        return self.active[CLUSTERS.index(blocks)]


_EXCHANGE_CYCLES = 420
"""Cycles from a push to the end of the wait for it. 180 from one multiprocessor to another one are published for an
H100; the rest is the push, the count at the signal and the wait."""
_ALONE_CYCLES = 120
"""Cycles of an exchange of a block with itself."""
_PUSHED_BYTES = 11
"""Bytes that leave a block in a cycle: 2.65 TB/s of 132 multiprocessors (published for loads)."""
_BARRIER_CYCLES = 40
_ROW_CYCLES = {"forward": 300, "backward": 450}
"""Cycles of a warp for a row: exponentials, loads and stores."""
_NORM_CYCLES = 300
"""Cycles of a warp for an exchange of a norm: sums over its lanes, then over the exchanged values of all blocks."""
_PART_CYCLES = 8
"""Cycles to add one part of a product."""
_WARPS, _SCHEDULERS = THREADS // 32, 4


def _cycles(direction: str, cluster: int, rows: int, each: int, slices: int, length: int, kept: int, hidden: int,
            norms: int) -> float:
    """Cycles of a time step of one cluster, by counted work and published latencies.

    `length` are the inputs of a slice of the product, `kept` those whose weights are in registers, `norms` the
    exchanges of norms; one of the states comes on top.
    """
    is_backward = direction == "backward"
    multiply = _WARPS * each * length * rows / _SCHEDULERS
    read = _WARPS * (length / 4 * rows + (length - kept) * each)  # of shared memory, 128 bytes a cycle
    exchange = _ALONE_CYCLES if cluster == 1 else _EXCHANGE_CYCLES
    copies, parts = (slices, slices * cluster) if is_backward else (1, slices)
    # The states, or the parts of their gradients, leave a block.
    pushed = 0 if cluster == 1 else 4 * rows * hidden * copies / _PUSHED_BYTES
    return (max(multiply, read) + _BARRIER_CYCLES + (1 + norms) * exchange + pushed
            + _ROW_CYCLES[direction] + norms * _NORM_CYCLES + parts * _PART_CYCLES)


class ClusterPlan(NamedTuple):
    """The layout of a walk in one direction."""

    hidden: int
    cluster: int
    """Blocks of a cluster."""
    rows: int
    """Rows of the batch of a cluster."""
    each: int
    """Outputs of a thread in the product of a time step."""
    slices: int
    """Parts of the inputs of that product."""
    kept: int
    """Inputs of a slice whose weights are in registers."""
    shared: int
    """Bytes of shared memory for the other weights."""
    cycles: float
    """Cycles of a time step of the whole batch, by the model."""

    @property
    def own(self) -> int:
        """Units of a block."""
        return ceil(self.hidden / self.cluster)

    def grid(self, batch: int) -> int:
        """Blocks for a batch of this size."""
        return ceil(batch / self.rows) * self.cluster

    def macros(self, **norms: int) -> dict[str, int]:
        """The macros with which the source is compiled."""
        return {"HIDDEN": self.hidden, "CLUSTER": self.cluster, "ROWS": self.rows, "UNITS": ceil(self.own / _LANES),
                "THREADS": THREADS, "EACH": self.each, "SLICES": self.slices, "KEPT": self.kept, **norms}


@cache
def plan(cell: str, norm: str, direction: str, hidden: int, batch: int, device: Device) -> ClusterPlan | None:
    """The fastest plan for a batch, by the model; None where the device has no clusters or the weights do not fit.

    Args:
        cell: "lstm", "gru" or "rnn".
        norm: a variant that has a walk.
        direction: "forward" or "backward".
        hidden: units, at least 1.
        batch: rows, at least 1.
        device: what the plan must fit.
    """
    plans = _plans(CELLS[cell].gates, FUSED[cell, norm], direction, hidden, batch, device)
    return min(plans, key=lambda p: p.cycles, default=None)


def _plans(gates: int, variant: Fused, direction: str, hidden: int, batch: int,
           device: Device) -> Iterator[ClusterPlan]:
    exchanged = variant.exchanged if direction == "forward" else variant.exchanged_back
    for cluster in filter(device.clusters, CLUSTERS):
        own = ceil(hidden / cluster)
        if ceil(hidden / own) < cluster:  # a block without units would send nothing: nobody would know what it has read
            continue
        inputs, outputs = (hidden, gates * own) if direction == "forward" else (gates * own, hidden)
        for rows in (r for r in _ROWS if r < 2 * batch):
            waves = ceil(ceil(batch / rows) / device.clusters(cluster))
            for each in range(1, _MOST_EACH + 1):
                at_once = ceil(outputs / each)
                if at_once > THREADS:
                    continue
                slices = min(THREADS // at_once, ceil(inputs / 4), _MOST_SLICES)
                length = ceil(ceil(inputs / slices) / 4) * 4
                registers = _registers(direction, rows, each, ceil(own / _LANES)) - variant.registers
                kept = min(registers // each // 4 * 4, length)
                if kept < length:
                    kept = min(kept, length - _LEAST_REST)
                columns = outputs if direction == "forward" else cluster * own
                static = _static(exchanged, columns, cluster, rows, slices, length)
                rest = (length - kept) * each * at_once * slices * 4
                if kept < 4 or static > _STATIC_SHARED or static + rest + _RESERVED_SHARED > device.shared:
                    continue
                cycles = _cycles(direction, cluster, rows, each, slices, length, kept, hidden, len(exchanged))
                yield ClusterPlan(hidden, cluster, rows, each, slices, kept, rest, waves * cycles)


def _registers(direction: str, rows: int, each: int, units: int) -> int:
    """The registers for the weights of a thread."""
    return (_WEIGHTS_IN_REGISTERS[direction] - _OF_A_SUM * max(each * rows - _SUMS, 0)
            - _OF_AN_OUTPUT * max(each - _OUTPUTS, 0) - _OF_A_UNIT * (units - _UNITS))


def _static(exchanged: Sequence[int], columns: int, cluster: int, rows: int, slices: int, length: int) -> int:
    """Bytes of shared memory that the source declares; `columns` are those of a slice's part of the product."""
    of_norms = sum(2 * cluster * rows * n * 4 + 16 for n in exchanged)
    vectors = 2 * rows * slices * length * 4
    parts = 2 * slices * rows * columns * 4
    return of_norms + vectors + parts + 32
