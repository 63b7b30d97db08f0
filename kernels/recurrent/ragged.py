"""Padded sequences on the CPU: once a sequence has ended, its row is no longer computed.

A mask that is True up to a length and False from there on is what padding makes. The rows are put in the order of
their lengths, and time is cut into stretches, each walked with the rows that are still alive at its start. What comes
out is the same as where the mask copies states. A GRU of 1024 units with norms over 128 captions, 12 words long and
padded to 20, takes 0.76 s of CPU time forward and back instead of 0.93 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels.recurrent.parts import FEWEST_ROWS, Forward, Vjp

_WORTH = 0.9
"""Share of real steps from which on nothing is gained."""
_FALL = 0.5
"""A new stretch begins where fewer of the rows of the last one are left: its weights are prepared anew. The last few
rows (`FEWEST_ROWS`) go on to their end: their products take as long as reading the weights."""


class Stretch(NamedTuple):
    """Steps that are walked together, with the first so many rows in the order of lengths."""

    steps: slice
    rows: int


class _Saved(NamedTuple):
    order: Array
    shape: tuple[int, ...]
    """Of x."""
    stretches: list[Stretch]
    kept: list[Any]


def stretches(lengths: Array) -> list[Stretch]:
    """The stretches of sequences in falling order of their lengths; none of them is empty, none goes beyond the first.

    Shape:
        lengths int (B,), not rising.
    """
    found: list[Stretch] = []
    start = 0
    while start < lengths[0]:
        rows = int(np.count_nonzero(lengths > start))
        stop = int(lengths[int(np.ceil(_FALL * rows)) - 1 if rows > FEWEST_ROWS else 0])
        found.append(Stretch(slice(start, stop), rows))
        start = stop
    return found


def ragged(forward: Forward, vjp: Vjp, states: int) -> tuple[Forward, Vjp]:
    """The same pair, which skips padding; `states` says how many states follow the input.

    It walks as the given pair does where there is no mask, one that no padding made, or little to skip.
    """
    place = states + 4
    """Of the mask among the arrays."""

    def walk(be: Backend, *arrays: Array | None, **attrs: Any) -> tuple[tuple[Array, ...], Any]:
        x, mask = arrays[0], arrays[place]
        assert x is not None
        if mask is None or attrs["reverse"] or not _worth_it(mask):
            return forward(be, *arrays, **attrs)
        lengths = mask.sum(axis=0)
        order = np.argsort(-lengths, kind="stable")
        now = [np.take(state, order, axis=0) for state in arrays[1:states + 1] if state is not None]
        outs = np.empty((*x.shape[:2], now[0].shape[1]), x.dtype)
        kept, cut = [], stretches(lengths[order])
        for steps, rows in cut:
            alive = order[:rows]
            own = list(arrays)
            own[0] = np.take(x[steps], alive, axis=1)
            own[1:states + 1] = [state[:rows] for state in now]
            own[place] = np.take(mask[steps], alive, axis=1)
            (hidden, *last), saved = forward(be, *own, **attrs)
            outs[steps, order[rows:]] = now[0][rows:]
            outs[steps, alive] = hidden
            now = [np.concatenate((new, state[rows:])) for new, state in zip(last, now, strict=True)]
            kept.append(saved)
        outs[cut[-1].steps.stop:, order] = now[0]
        ended = [np.empty_like(state) for state in now]
        for state, sorted_state in zip(ended, now, strict=True):
            state[order] = sorted_state
        return (outs, *ended), _Saved(order, x.shape, cut, kept)

    def walk_back(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
                  needs: Sequence[bool]) -> list[Array | None]:
        if not isinstance(saved, _Saved):
            return vjp(be, saved, gouts, needs)
        order, shape, cut, kept = saved
        g_out = gouts[0]
        first = next(g for g in gouts if g is not None)
        size = (shape[1], first.shape[-1])
        now = [np.zeros(size, first.dtype) if g is None else np.take(g, order, axis=0) for g in gouts[1:]]
        if g_out is not None:
            now[0] += g_out[cut[-1].steps.stop:, order].sum(axis=0)
        d_x = np.zeros(shape, first.dtype) if needs[0] else None
        totals: list[Array | None] = []
        for (steps, rows), own in zip(reversed(cut), reversed(kept), strict=True):
            alive = order[:rows]
            felt = None if g_out is None else np.take(g_out[steps], alive, axis=1)
            if g_out is not None:
                now[0][rows:] += g_out[steps, order[rows:]].sum(axis=0)
            found = vjp(be, own, (felt, *(g[:rows] for g in now)), needs)
            if d_x is not None:
                d_x[steps, alive] = found[0]
            for g, part in zip(now, found[1:states + 1], strict=True):
                g[:rows] = part
            shared = found[states + 1:]
            totals = list(shared) if not totals else [_added(a, b) for a, b in zip(totals, shared, strict=True)]
        of_states = [np.empty_like(g) for g in now]
        for g, sorted_g in zip(of_states, now, strict=True):
            g[order] = sorted_g
        return [d_x, *of_states, *totals]

    return walk, walk_back


def _worth_it(mask: Array) -> bool:
    """Whether padding made the mask, and there is enough of it."""
    return bool(mask.size and mask[0].any() and mask.mean() <= _WORTH and not (mask[1:] > mask[:-1]).any())


def _added(total: Array | None, part: Array | None) -> Array | None:
    """Their sum, in an array of its own: a rule may hand out one array as the gradient of two arguments."""
    return total if part is None or total is None else total + part
