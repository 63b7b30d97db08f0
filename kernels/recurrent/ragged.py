"""Padded sequences on the CPU: once a sequence has ended, its row is no longer computed.

Padding gives a mask that is True up to a length and False after it. The rows are sorted by length, and time is divided
into stretches; each one is computed for the rows that have not ended at its start. The results equal those of a time
loop that copies the states of masked rows. A GRU of 1024 units with norms over 128 captions, 12 words long and padded
to 20, takes 0.76 s of CPU time forward and backward instead of 0.93 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels.recurrent.arguments import Arguments
from duoln.kernels.recurrent.parts import FEWEST_ROWS, Forward, Vjp

_WORTH = 0.9
"""With at least this share of real time steps, the rule saves no time."""
_FALL = 0.5
"""A new stretch begins when less than this share of the last one's rows has not ended, because each stretch prepares
its weights again. The last few rows (`FEWEST_ROWS`) stay together: with fewer rows a product is not faster."""


class Stretch(NamedTuple):
    """Time steps that are computed together, for the first rows in the order of lengths."""

    steps: slice
    rows: int


class _Saved(NamedTuple):
    order: Array
    shape: tuple[int, ...]
    """Of x."""
    stretches: list[Stretch]
    kept: list[Any]


def stretches(lengths: Array) -> list[Stretch]:
    """The stretches of sequences in falling order of length. No stretch is empty or longer than the first sequence.

    Shape:
        lengths int (B,), not rising.
    """
    cut: list[Stretch] = []
    start = 0
    while start < lengths[0]:
        rows = int(np.count_nonzero(lengths > start))
        stop = int(lengths[int(np.ceil(_FALL * rows)) - 1 if rows > FEWEST_ROWS else 0])
        cut.append(Stretch(slice(start, stop), rows))
        start = stop
    return cut


def ragged(forward: Forward, vjp: Vjp, states: int) -> tuple[Forward, Vjp]:
    """The same pair, which skips padding; `states` is the number of states after the input.

    It computes as the given pair does if there is no mask, if the mask is not that of padding, or if there is little
    to skip.
    """

    def walk(be: Backend, *arrays: Array | None, **attrs: Any) -> tuple[tuple[Array, ...], Any]:
        arguments = Arguments.of(arrays, states)
        x, mask = arguments.x, arguments.mask
        assert x is not None
        if mask is None or attrs["reverse"] or not _worth_it(mask):
            return forward(be, *arrays, **attrs)
        lengths = mask.sum(axis=0)
        order = np.argsort(-lengths, kind="stable")
        now = [np.take(state, order, axis=0) for state in arguments.states if state is not None]
        outs = np.empty((*x.shape[:2], now[0].shape[1]), x.dtype)
        kept, cut = [], stretches(lengths[order])
        for steps, rows in cut:
            alive = order[:rows]
            own = arguments._replace(x=np.take(x[steps], alive, axis=1), states=tuple(state[:rows] for state in now),
                                     mask=np.take(mask[steps], alive, axis=1))
            (hidden, *last), saved = forward(be, *own.flat(), **attrs)
            outs[steps, order[rows:]] = now[0][rows:]
            outs[steps, alive] = hidden
            now = [np.concatenate((new, state[rows:])) for new, state in zip(last, now, strict=True)]
            kept.append(saved)
        outs[cut[-1].steps.stop:, order] = now[0]
        return (outs, *(_unsorted(state, order) for state in now)), _Saved(order, x.shape, cut, kept)

    def walk_back(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
                  needs: Sequence[bool]) -> list[Array | None]:
        if not isinstance(saved, _Saved):
            return vjp(be, saved, gouts, needs)
        order, shape, cut, kept = saved
        d_hidden = gouts[0]
        given = next(d for d in gouts if d is not None)
        size = (shape[1], given.shape[-1])
        now = [np.zeros(size, given.dtype) if d is None else np.take(d, order, axis=0) for d in gouts[1:]]
        if d_hidden is not None:
            now[0] += d_hidden[cut[-1].steps.stop:, order].sum(axis=0)
        d_x = np.zeros(shape, given.dtype) if needs[0] else None
        totals: list[Array | None] = []
        for (steps, rows), own in zip(reversed(cut), reversed(kept), strict=True):
            alive = order[:rows]
            d_alive = None if d_hidden is None else np.take(d_hidden[steps], alive, axis=1)
            if d_hidden is not None:
                now[0][rows:] += d_hidden[steps, order[rows:]].sum(axis=0)
            gradients = Arguments.of(vjp(be, own, (d_alive, *(d[:rows] for d in now)), needs), states)
            if d_x is not None:
                d_x[steps, alive] = gradients.x
            for d, part in zip(now, gradients.states, strict=True):
                d[:rows] = part
            shared = [gradients.w_x, gradients.w_h, gradients.bias, gradients.mask, *gradients.norms]
            totals = [_added(a, b) for a, b in zip(totals, shared, strict=True)] if totals else shared
        return [d_x, *(_unsorted(d, order) for d in now), *totals]

    return walk, walk_back


def _unsorted(rows: Array, order: Array) -> Array:
    """Rows that were sorted by `order`, in their original order."""
    unsorted = np.empty_like(rows)
    unsorted[order] = rows
    return unsorted


def _worth_it(mask: Array) -> bool:
    """Whether the mask is that of padding, and there is enough padding."""
    return bool(mask.size and mask[0].any() and mask.mean() <= _WORTH and not (mask[1:] > mask[:-1]).any())


def _added(total: Array | None, part: Array | None) -> Array | None:
    """The sum in a new array, because a rule may return one array as the gradient of two arguments."""
    return total if part is None or total is None else total + part
