"""The last layer with its softmax cross-entropy on the CPU: it skips padding and computes exponentials in place.

Rows of padding (with a negative label) are never multiplied. The exponentials of all logits are kept for the gradient
if they take at most `KEEP_BYTES`. Otherwise they are computed again, one block of classes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import linear_cross_entropy
from duoln.ops.linear_loss import BLOCK

KEEP_BYTES = 1 << 28


class _Saved(NamedTuple):
    shape: tuple[int, ...]
    """The shape of x."""
    real: Array
    """The numbers of the rows that are not padding."""
    x: Array
    """The rows that are not padding."""
    weight: Array
    bias: Array
    target: Array
    largest: Array
    """The largest logit of each row: (rows, 1)."""
    total: Array
    """The sum of the exponentials relative to the largest logit: (rows, 1)."""
    kept: Array | None
    """The exponentials, if they are kept: (rows, classes)."""


def _supports(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> str | None:
    return None if x.size else "there are no values"


def _forward(be: Backend, x: Array, weight: Array, bias: Array, labels: Array) -> tuple[Array, _Saved]:
    real = np.flatnonzero(np.reshape(labels, -1) >= 0)
    flat, target = np.reshape(x, (prod(labels.shape), -1))[real], np.reshape(labels, -1)[real]
    rows, classes = len(real), weight.shape[1]
    keep = rows * classes * flat.itemsize <= KEEP_BYTES
    step = max(BLOCK // classes, 1)
    kept = host.empty((rows if keep else min(step, rows), classes), flat.dtype)
    largest, total, picked = (np.empty((rows, 1), flat.dtype) for _ in range(3))
    ones = np.ones((classes, 1), flat.dtype)
    in_cache = host.rows_per_block(classes, flat.itemsize)
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        logits = kept[block] if keep else kept[:block.stop - start]
        np.matmul(flat[block], weight, out=logits)

        def work(first: int, last: int, logits: Array = logits, start: int = start) -> None:
            for row in range(first, last, in_cache):
                end = min(row + in_cache, last)
                part, e = slice(start + row, start + end), logits[row:end]
                np.add(e, bias, e)
                np.max(e, axis=1, keepdims=True, out=largest[part])
                np.subtract(e, largest[part], e)
                picked[part, 0] = e[np.arange(end - row), target[part]]
                np.exp(e, e)
                np.matmul(e, ones, out=total[part])

        host.over_rows(len(logits), classes * flat.itemsize, work)
    loss = np.zeros(prod(labels.shape), flat.dtype)
    loss[real] = (np.log(total) - picked)[:, 0]
    saved = _Saved(x.shape, real, flat, weight, bias, target, largest, total, kept if keep else None)
    return loss.reshape(labels.shape), saved


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    x, weight, target = saved.x, saved.weight, saved.target
    rows, classes = len(x), weight.shape[1]
    g = np.reshape(gout, -1)[saved.real]
    scale = g[:, None] / saved.total
    d_x = np.zeros((prod(gout.shape), weight.shape[0]), x.dtype) if needs[0] else None
    d_weight = np.empty_like(weight) if needs[1] else None
    d_bias = np.empty_like(saved.bias) if needs[2] else None
    ones, share = np.ones((1, rows), x.dtype), np.zeros_like(x)
    step = max(BLOCK // max(rows, 1), 1)
    scratch = host.empty((rows * min(step, classes),), x.dtype)
    by_label = np.argsort(target, kind="stable")
    bounds = np.searchsorted(target[by_label], np.arange(0, classes + step, step))
    for k, start in enumerate(range(0, classes, step)):
        part = slice(start, min(start + step, classes))
        width = part.stop - start
        d = scratch[:rows * width].reshape(rows, width)
        np.multiply(_exponentials(saved, part, d), scale, d)
        here = by_label[bounds[k]:bounds[k + 1]]
        d[here, target[here] - start] -= g[here]
        if d_x is not None:
            share += d @ weight[:, part].T
        if d_weight is not None:
            np.matmul(x.T, d, out=d_weight[:, part])
        if d_bias is not None:
            d_bias[part] = (ones @ d)[0]
    if d_x is not None:
        d_x[saved.real] = share
        d_x = d_x.reshape(saved.shape)
    return [d_x, d_weight, d_bias, None]


def _exponentials(saved: _Saved, part: slice, out: Array) -> Array:
    """The exponentials of a block of classes: the kept ones, or new ones in `out`."""
    if saved.kept is not None:
        return saved.kept[:, part]
    np.matmul(saved.x, saved.weight[:, part], out=out)
    np.add(out, saved.bias[part], out)
    np.subtract(out, saved.largest, out)
    return np.exp(out, out)


def attach() -> None:
    """Add the rule to `linear_cross_entropy`."""
    linear_cross_entropy.add(Rule("padding left out", _forward, _vjp, _supports), backend="numpy")
