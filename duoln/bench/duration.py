"""How long `duoln bench ops` will take, from the number and the size of its measurements."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.bench import clock
from duoln.bench.operators import AGAIN_ROUNDS, Plan
from duoln.bench.subjects import CACHE_BYTES

_LAUNCHES = 3.25
"""Runs of a sample: k launches, 2k, and a quarter of k before them."""
_BEFORE = 4.0
"""Runs before the first sample: they choose k, and use every buffer."""
_OF_COPY = 0.3
"""What a rule moves, at a cautious guess, as a share of what a copy moves."""
_PREPARED_GBPS = 1.0
"""10^9 bytes a second at which buffers are filled."""
_CHECKED_SECONDS = 7e-8
"""For each value and direction: the composed rule, and that in float64, on the host."""


def seconds(plans: Sequence[Plan], sides: int, rounds: int, gbps: float) -> float:
    """An estimate, good to a factor of two on a machine that does nothing else.

    Args:
        plans: what is timed.
        sides: ours and the peers.
        rounds: samples of each side.
        gbps: what a copy moves.
    """
    of_copy = _LAUNCHES * AGAIN_ROUNDS * clock.SAMPLE_SECONDS
    return sum(sides * _of_side(plan, rounds, gbps) + of_copy for plan in plans)


def words(total: float) -> str:
    """A rounded time: what is no better known gets no more digits."""
    return f"{max(round(total / 10), 1) * 10} s" if total < 95 else f"{round(total / 60)} minutes"


def _of_side(plan: Plan, rounds: int, gbps: float) -> float:
    rows, width = plan.shape
    launch = plan.subject.bytes_moved(rows, width, plan.backward) / (_OF_COPY * gbps * 1e9)
    run = max(clock.SAMPLE_SECONDS, launch)
    cold = plan.cache == "cold"
    filled = 2 * CACHE_BYTES * len(plan.subject.rows_arguments()) if cold else 0
    checked = rows * width * (2 if plan.backward else 1)
    return (_LAUNCHES * rounds + _BEFORE) * run + filled / (_PREPARED_GBPS * 1e9) + checked * _CHECKED_SECONDS
