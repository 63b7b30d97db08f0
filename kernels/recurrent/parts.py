"""Parts of a batch side by side: rows do not know of each other, so each thread walks through time with its own.

The steps of one part follow each other, but those of two parts need not, and NumPy and BLAS give up the interpreter
lock while they compute. This keeps the elementwise passes of a step on all cores, which threads within a step
cannot: waking a thread costs as much as a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host

FEWEST_ROWS = 16
"""A part of fewer rows multiplies at the speed of reading the weights, and two of them read twice."""

FEWEST_VALUES = 2_000_000
"""Hidden values of a whole sequence (steps x rows x hidden) below which parts take longer: two threads that make many
short calls wait for each other's interpreter lock. An LN-LSTM's two parts against one, forward and backward, two cores:
1.4 to 1.8 times as long at 20 x 32 x 48, 1.3 at 100 x 128 x 64, as long at 100 x 128 x 128, 0.87 at 100 x 128 x 256."""

Forward = Callable[..., tuple[tuple[Array, ...], Any]]
Vjp = Callable[[Backend, Any, tuple[Array | None, ...], Sequence[bool]], list[Array | None]]


def bounds(steps: int, batch: int, hidden: int) -> list[slice]:
    """The rows of each part: equal parts, one for each thread, none smaller than FEWEST_ROWS; one of little work."""
    enough = steps * batch * hidden >= FEWEST_VALUES
    parts = max(min(host.independent_workers(), batch // FEWEST_ROWS), 1) if enough else 1
    return [slice(a, b) for a, b in pairwise(batch * i // parts for i in range(parts + 1))]


def side_by_side(forward: Forward, vjp: Vjp, states: int) -> tuple[Forward, Vjp]:
    """The same pair over parts of the batch; `states` says how many states follow the input.

    The parts depend on sizes alone, and what they share is added in their order: the same to the bit on every run.
    """

    def batch_axis(position: int) -> int | None:
        """Where an argument has its batch; None for what all rows share."""
        return 1 if position in (0, states + 4) else 0 if position <= states else None

    def in_parts(be: Backend, *arrays: Array | None, **attrs: Any) -> tuple[tuple[Array, ...], Any]:
        x, first = arrays[:2]
        assert x is not None and first is not None
        slices = bounds(x.shape[0], x.shape[1], first.shape[1])

        def part(rows: slice) -> tuple[tuple[Array, ...], Any]:
            return forward(be, *(_rows(a, batch_axis(i), rows) for i, a in enumerate(arrays)), **attrs)

        done = host.side_by_side([partial(part, rows) for rows in slices])
        outs = tuple(_joined(column, 0 if i else 1) for i, column in enumerate(zip(*(d[0] for d in done), strict=True)))
        return outs, (slices, [saved for _, saved in done])

    def vjp_in_parts(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
                     needs: Sequence[bool]) -> list[Array | None]:
        slices, kept = saved

        def part(rows: slice, own: Any) -> list[Array | None]:
            return vjp(be, own, tuple(_rows(g, 0 if i else 1, rows) for i, g in enumerate(gouts)), needs)

        done = host.side_by_side([partial(part, rows, own) for rows, own in zip(slices, kept, strict=True)])
        return [_total(found) if batch_axis(i) is None else _joined(found, batch_axis(i))
                for i, found in enumerate(zip(*done, strict=True))]

    return in_parts, vjp_in_parts


def _rows(array: Array | None, axis: int | None, rows: slice) -> Array | None:
    if array is None or axis is None:
        return array
    return array[:, rows] if axis else array[rows]


def _joined(parts: Sequence[Array | None], axis: int | None) -> Array | None:
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else np.concatenate(present, axis=axis) if present else None


def _total(parts: Sequence[Array | None]) -> Array | None:
    total = parts[0]
    for other in parts[1:]:
        total = None if total is None else total + other
    return total
