"""Parts of a batch side by side: no row depends on another, so each thread computes all time steps of its own rows.

NumPy and BLAS release the interpreter lock while they compute, so all cores work on the elementwise passes of a time
step. Threads within one time step would save no time, because to wake a thread takes as long as a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host
from duoln.kernels.recurrent.arguments import Arguments

FEWEST_ROWS = 16
"""A product with fewer rows takes as long as it takes to read the weights, and two parts read them twice."""

FEWEST_VALUES = 2_000_000
"""Hidden values of a whole sequence (steps x rows x hidden) below which parts take longer: two threads that make many
short calls wait for each other's interpreter lock. An LN-LSTM in two parts takes, forward and backward
on two cores, 1.4 to 1.8 times as long as in one at 20 x 32 x 48, 1.3 at 100 x 128 x 64, 1.0 at 100 x 128 x 128, 0.87 at
100 x 128 x 256."""

Forward = Callable[..., tuple[tuple[Array, ...], Any]]
Vjp = Callable[[Backend, Any, tuple[Array | None, ...], Sequence[bool]], list[Array | None]]


def bounds(steps: int, batch: int, hidden: int) -> list[slice]:
    """The rows of each part: one equal part per thread, at least FEWEST_ROWS each; one part for little work."""
    if steps * batch * hidden < FEWEST_VALUES:
        return [slice(0, batch)]
    parts = max(min(host.independent_workers(), batch // FEWEST_ROWS), 1)
    return [slice(a, b) for a, b in pairwise(batch * i // parts for i in range(parts + 1))]


class _Saved(NamedTuple):
    slices: list[slice]
    kept: list[Any]
    """The values that the rule saved for each part."""


def side_by_side(forward: Forward, vjp: Vjp, states: int) -> tuple[Forward, Vjp]:
    """The same pair over parts of the batch; `states` is the number of states after the input.

    The parts depend only on sizes, and shared gradients are added in their order, so every run gives the same bits.
    """

    def in_parts(be: Backend, *arrays: Array | None, **attrs: Any) -> tuple[tuple[Array, ...], Any]:
        x, h = arrays[:2]
        assert x is not None and h is not None
        slices = bounds(x.shape[0], x.shape[1], h.shape[1])
        if len(slices) == 1:
            return forward(be, *arrays, **attrs)
        arguments = Arguments.of(arrays, states)

        def part(rows: slice) -> tuple[tuple[Array, ...], Any]:
            return forward(be, *arguments.of_rows(rows).flat(), **attrs)

        results = host.side_by_side([partial(part, rows) for rows in slices])
        hidden, *last = (np.concatenate(pieces, axis=0 if k else 1)
                         for k, pieces in enumerate(zip(*(outs for outs, _ in results), strict=True)))
        return (hidden, *last), _Saved(slices, [saved for _, saved in results])

    def vjp_in_parts(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
                     needs: Sequence[bool]) -> list[Array | None]:
        if not isinstance(saved, _Saved):
            return vjp(be, saved, gouts, needs)

        def part(rows: slice, kept: Any) -> list[Array | None]:
            d_hidden, *d_states = gouts
            return vjp(be, kept, (None if d_hidden is None else d_hidden[:, rows],
                                  *(None if d is None else d[rows] for d in d_states)), needs)

        tasks = [partial(part, rows, kept) for rows, kept in zip(saved.slices, saved.kept, strict=True)]
        gradients = [Arguments.of(parts, states) for parts in host.side_by_side(tasks)]
        shared = zip(*((g.w_x, g.w_h, g.bias, g.mask, *g.norms) for g in gradients), strict=True)
        return [_joined([g.x for g in gradients], 1),
                *(_joined(parts, 0) for parts in zip(*(g.states for g in gradients), strict=True)),
                *(_total(parts) for parts in shared)]

    return in_parts, vjp_in_parts


def _joined(parts: Sequence[Array | None], axis: int) -> Array | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present, axis=axis) if present else None


def _total(parts: Sequence[Array | None]) -> Array | None:
    total = parts[0]
    for part in parts[1:]:
        total = None if total is None else total + part
    return total
