"""The last layer with its softmax cross-entropy on the CPU, compiled: blocks of classes.

Rows of padding (with a negative label) are never multiplied. The logits are kept for the gradient if they take at most
KEEP_BYTES; otherwise each block is multiplied again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.kernels.linear.multiply import column_sums, multiply, multiply_and_sum
from duoln.ops import linear_cross_entropy

BLOCK = 1 << 19
"""The largest number of logits of a block: they stay in L2 between the product and the loss."""
KEEP_BYTES = 1 << 28
_UNIT = 64
"""A block has an odd multiple of this number of classes: its rows begin on cache lines, its halves are whole tiles, and
its row stride is no large power of two, at which all rows would share a few sets of the caches.
"""
_LEAST_UNITS = 7

_FILE = "softmax/linear_cross_entropy.cpp"

_TEXT = _FILE.removesuffix(".cpp")
_ROWS = "logits: own[rows, width], labels: int32[rows], largest: own, total: own"
_gather = Launch(_TEXT, "linear_cross_entropy_gather", f"{_ROWS}, picked: own, start: int64, threads: int32")
_differentiate = Launch(_TEXT, "linear_cross_entropy_backward", f"{_ROWS}, d_loss: real[rows], d_logits: own, "
                                                                "start: int64, threads: int32")


class _Row(NamedTuple):
    """The state of each row that is not padding."""

    number: Array
    """Its index among all rows."""
    x: Array
    label: Array
    largest: Array
    """Its largest logit."""
    total: Array
    """The sum of the exponentials relative to the largest logit."""


class _Saved(NamedTuple):
    shape: tuple[int, ...]
    """The shape of x."""
    rows: _Row
    weight: Array
    bias: Array
    kept: Array | None
    """The logits of one block after another, if they are kept."""


def _blocks(rows: int, classes: int) -> Iterator[slice]:
    units = max((BLOCK // (max(rows, 1) * _UNIT) - 1) | 1, _LEAST_UNITS)
    for start in range(0, classes, units * _UNIT):
        yield slice(start, min(start + units * _UNIT, classes))


def _of_block(logits: Array, rows: int, block: slice) -> Array:
    return logits[rows * block.start:rows * block.stop].reshape(rows, block.stop - block.start)


def _supports(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> str | None:
    return native.refusal(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> tuple[Array, _Saved]:
    flat_labels, bias = np.reshape(labels, -1), host.contiguous(bias)
    number = np.flatnonzero(flat_labels >= 0)
    count = len(number)
    rows = _Row(number, np.reshape(x, (-1, x.shape[-1]))[number], flat_labels[number],
                np.full(count, -np.inf, x.dtype), np.zeros(count, x.dtype))
    picked = host.empty((count,), x.dtype)
    size = count * weight.shape[1]
    kept = host.empty((size,), x.dtype) if size * x.itemsize <= KEEP_BYTES else None
    for block in _blocks(count, weight.shape[1]):
        out = None if kept is None else _of_block(kept, count, block)
        logits = multiply(rows.x, weight[:, block], out, added=bias[block])
        _gather[be.name](logits, rows.label, rows.largest, rows.total, picked, block.start,
                         native.threads_for(logits.nbytes))
    loss = np.zeros(labels.shape, x.dtype)
    loss.reshape(-1)[number] = np.log(rows.total) + (rows.largest - picked)
    return loss, _Saved(x.shape, rows, weight, bias, kept)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    rows, weight, bias = saved.rows, saved.weight, saved.bias
    d_loss = np.reshape(gout, -1)[rows.number]
    share = np.zeros_like(rows.x) if needs[0] else None
    d_weight = host.empty_like(weight) if needs[1] else None
    d_bias = host.empty_like(bias) if needs[2] else None
    for block in _blocks(len(rows.x), weight.shape[1]):
        if saved.kept is None:
            logits = d_logits = multiply(rows.x, weight[:, block], added=bias[block])
        else:
            logits = _of_block(saved.kept, len(rows.x), block)
            d_logits = host.empty_like(logits)
        _differentiate[be.name](logits, rows.label, rows.largest, rows.total, d_loss, d_logits, block.start,
                                native.threads_for(logits.nbytes))
        if share is not None:
            multiply(d_logits, weight[:, block].T, share, added=share)
        if d_weight is not None and d_bias is not None:
            d_bias[block] = multiply_and_sum(rows.x.T, d_logits, d_weight[:, block])[1]
        elif d_weight is not None:
            multiply(rows.x.T, d_logits, d_weight[:, block])
        elif d_bias is not None:
            d_bias[block] = column_sums(d_logits)
        del logits, d_logits  # the next block's get the same memory, which is in cache
    dx = None
    if share is not None:
        dx = np.zeros((gout.size, weight.shape[0]), weight.dtype)
        dx[rows.number] = share
        dx = dx.reshape(saved.shape)
    return [dx, d_weight, d_bias, None]


def attach() -> None:
    """Add the rule to `linear_cross_entropy`."""
    linear_cross_entropy.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
