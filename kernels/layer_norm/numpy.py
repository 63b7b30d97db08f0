"""Layer norm on the CPU: all passes work on a block of rows while it is in cache.

Row sums are products with ones, and sums of squares are `vecdot`, because these use BLAS and `mean` does not. For the
gradient the rule keeps the normalised rows and one reciprocal deviation per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import layer_norm

_OFFSET = 1e-7
"""If the remaining mean is above this share of the deviation, it is subtracted again."""


def supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              eps_place: str = "inside", activation: str | None = None) -> str | None:
    """The reason why this rule cannot run; None if it can."""
    if eps_place != "inside":
        return "epsilon is outside the root"
    if x.size == 0:
        return "there are no values"
    return None


def forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
            eps_place: str, activation: str | None = None) -> tuple[Array, Any]:
    """The normalised rows; it saves the rows before gain and bias, and their reciprocal deviations."""
    width = x.shape[-1]
    rows = prod(x.shape[:-1])
    flat = np.ascontiguousarray(x).reshape(rows, width)
    xhat, y = np.empty_like(flat), np.empty_like(flat)
    rstd = np.empty((rows, 1), flat.dtype)
    mean_of, zeros = np.full((width, 1), 1 / width, flat.dtype), np.zeros(width, flat.dtype)
    step = host.rows_per_block(width, flat.itemsize)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            hat, out = xhat[part], y[part]
            np.subtract(flat[part], flat[part] @ mean_of, out=hat)
            offset = hat @ mean_of  # the rest of a large mean, after rounding
            r = rstd[part]
            np.vecdot(hat, hat, out=r[:, 0])
            r *= 1 / width
            if np.any(offset * offset > _OFFSET ** 2 * r):
                hat -= offset
                np.vecdot(hat, hat, out=r[:, 0])
                r *= 1 / width
            r += eps
            np.sqrt(r, out=r)
            np.reciprocal(r, out=r)
            hat *= r
            if gain is not None:
                np.multiply(hat, gain, out=out)
            if bias is not None:
                np.add(hat if gain is None else out, bias, out=out)
            if activation:
                before = hat if gain is None and bias is None else out
                if activation == "relu":
                    np.maximum(before, zeros, out=out)
                else:
                    np.tanh(before, out=out)

    host.over_rows(rows, width * flat.itemsize, work)
    if gain is None and bias is None and not activation:
        y = xhat
    return y.reshape(x.shape), (xhat, rstd, gain, activation, y if activation else None)


def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of rows, gain and bias in one pass over the rows."""
    xhat, rstd, gain, activation, y = saved
    rows, width = xhat.shape
    g = np.ascontiguousarray(gout).reshape(rows, width)
    dx = np.empty_like(xhat) if needs[0] else None
    mean_of = np.full((width, 1), 1 / width, g.dtype)
    step = host.rows_per_block(width, g.itemsize)
    blocks = range(0, rows, step)
    # Each block has one row of partial sums. They are added in order, so that every run gives the same bits.
    gain_parts = np.empty((len(blocks), width), g.dtype) if needs[1] else None
    bias_parts = np.empty((len(blocks), width), g.dtype) if needs[2] else None

    def work(first: int, last: int) -> None:
        for k in range(first, last):
            part = slice(k * step, min((k + 1) * step, rows))
            hat, dy = xhat[part], g[part]
            t = host.scratch("layer_norm", hat.size, hat.dtype).reshape(hat.shape)
            ones = np.ones(len(hat), hat.dtype)
            if activation:
                before = host.scratch("layer_norm activation", hat.size, hat.dtype).reshape(hat.shape)
                if activation == "relu":
                    np.multiply(dy, y[part] > 0, out=before)
                else:
                    np.multiply(y[part], y[part], out=before)
                    np.subtract(1.0, before, out=before)
                    np.multiply(dy, before, out=before)
                dy = before
            if bias_parts is not None:
                np.matmul(ones, dy, out=bias_parts[k])
            if gain_parts is not None:
                np.multiply(dy, hat, out=t)
                np.matmul(ones, t, out=gain_parts[k])
            if dx is not None:
                out = dx[part]
                scaled = dy
                if gain is not None:
                    scaled = np.multiply(dy, gain, out=out)
                mean_d_xhat = np.vecdot(scaled, hat)[:, None] * (1 / width)
                np.multiply(hat, mean_d_xhat, out=t)
                np.subtract(scaled, scaled @ mean_of, out=out)
                out -= t
                out *= rstd[part]

    host.over_rows(len(blocks), step * width * g.itemsize, work)
    return (None if dx is None else dx.reshape(gout.shape),
            None if gain_parts is None else gain_parts.sum(axis=0),
            None if bias_parts is None else bias_parts.sum(axis=0))


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("cache blocks", forward, vjp, supports), backend="numpy")
