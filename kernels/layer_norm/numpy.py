"""Layer norm on the CPU: a block of rows goes through all passes while it is in cache.

Row sums are products with ones and sums of squares are `vecdot`: these reach BLAS, `mean` does not. What is
kept for the gradient is the normalised rows and one reciprocal deviation a row.
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
"""A leftover mean above this share of the deviation is worth a second centring."""


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              eps_place: str = "inside", activation: str | None = None) -> str | None:
    if eps_place != "inside":
        return "epsilon is outside the root"
    if x.size == 0:
        return "there are no values"
    return None


def forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
            eps_place: str, activation: str | None = None) -> tuple[Array, Any]:
    """The normalised rows; keeps the rows before gain and bias, and one over their deviation."""
    width = x.shape[-1]
    rows = prod(x.shape[:-1])
    flat = np.ascontiguousarray(x).reshape(rows, width)
    normal, y = np.empty_like(flat), np.empty_like(flat)
    rstd = np.empty((rows, 1), flat.dtype)
    mean_of, zeros = np.full((width, 1), 1 / width, flat.dtype), np.zeros(width, flat.dtype)
    step = host.rows_per_block(width, flat.itemsize)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            n, out = normal[part], y[part]
            np.subtract(flat[part], flat[part] @ mean_of, out=n)
            offset = n @ mean_of  # what the rounding of a large mean left
            r = rstd[part]
            np.vecdot(n, n, out=r[:, 0])
            r *= 1 / width
            if np.any(offset * offset > _OFFSET ** 2 * r):
                n -= offset
                np.vecdot(n, n, out=r[:, 0])
                r *= 1 / width
            r += eps
            np.sqrt(r, out=r)
            np.reciprocal(r, out=r)
            n *= r
            if gain is not None:
                np.multiply(n, gain, out=out)
            if bias is not None:
                np.add(n if gain is None else out, bias, out=out)
            if activation:
                before = n if gain is None and bias is None else out
                if activation == "relu":
                    np.maximum(before, zeros, out=out)
                else:
                    np.tanh(before, out=out)

    host.over_rows(rows, width * flat.itemsize, work)
    if gain is None and bias is None and not activation:
        y = normal
    return y.reshape(x.shape), (normal, rstd, gain, activation, y if activation else None)


def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of rows, gain and bias in one pass over the rows."""
    normal, rstd, gain, activation, y = saved
    rows, width = normal.shape
    g = np.ascontiguousarray(gout).reshape(rows, width)
    gx = np.empty_like(normal) if needs[0] else None
    mean_of = np.full((width, 1), 1 / width, g.dtype)
    step = host.rows_per_block(width, g.itemsize)
    blocks = range(0, rows, step)
    # One row of partial sums a block, added up in order afterwards: the same on every run.
    gain_parts = np.empty((len(blocks), width), g.dtype) if needs[1] else None
    bias_parts = np.empty((len(blocks), width), g.dtype) if needs[2] else None

    def work(first: int, last: int) -> None:
        for k in range(first, last):
            part = slice(k * step, min((k + 1) * step, rows))
            n, gy = normal[part], g[part]
            t = host.scratch("layer_norm", n.size, n.dtype).reshape(n.shape)
            ones = np.ones(len(n), n.dtype)
            if activation:
                before = host.scratch("layer_norm activation", n.size, n.dtype).reshape(n.shape)
                if activation == "relu":
                    np.multiply(gy, y[part] > 0, out=before)
                else:
                    np.multiply(y[part], y[part], out=before)
                    np.subtract(1.0, before, out=before)
                    np.multiply(gy, before, out=before)
                gy = before
            if bias_parts is not None:
                np.matmul(ones, gy, out=bias_parts[k])
            if gain_parts is not None:
                np.multiply(gy, n, out=t)
                np.matmul(ones, t, out=gain_parts[k])
            if gx is not None:
                out = gx[part]
                scaled = gy
                if gain is not None:
                    scaled = np.multiply(gy, gain, out=out)
                along = np.vecdot(scaled, n)[:, None] * (1 / width)
                np.multiply(n, along, out=t)
                np.subtract(scaled, scaled @ mean_of, out=out)
                out -= t
                out *= rstd[part]

    host.over_rows(len(blocks), step * width * g.itemsize, work)
    return (None if gx is None else gx.reshape(gout.shape),
            None if gain_parts is None else gain_parts.sum(axis=0),
            None if bias_parts is None else bias_parts.sum(axis=0))


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("cache blocks", forward, vjp, _supports), backend="numpy")
