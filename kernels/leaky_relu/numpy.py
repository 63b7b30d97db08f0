"""Leaky ReLU on the CPU without `where`, which in NumPy takes about eight times as long as a product.

For a slope between 0 and 1 the value is max(x, slope * x). For the gradient the rule keeps the result, which has the
signs of x. All passes over a block run while it is in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import leaky_relu


def _supports(be: Backend, x: Array, slope: float) -> str | None:
    if not 0 < slope <= 1:
        return f"the slope is {slope}"
    return None if x.size else "there are no values"


def _forward(be: Backend, x: Array, slope: float) -> tuple[Array, Any]:
    flat = np.ascontiguousarray(x).reshape(-1)
    y = host.empty_like(flat)
    step = host.rows_per_block(1, flat.itemsize)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            np.multiply(flat[part], slope, out=y[part])
            np.maximum(flat[part], y[part], out=y[part])

    host.over_rows(flat.size, flat.itemsize, work)
    return y.reshape(x.shape), (y, slope)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    y, slope = saved
    g = np.ascontiguousarray(gout).reshape(-1)
    dx = host.empty_like(g)
    step = host.rows_per_block(1, g.itemsize)
    above = g.dtype.type(1 - slope)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            out = dx[part]
            np.multiply(y[part] > 0, above, out=out)
            out += slope
            out *= g[part]

    host.over_rows(g.size, g.itemsize, work)
    return (dx.reshape(gout.shape),)


def attach() -> None:
    """Add the rule to `leaky_relu`."""
    leaky_relu.add(Rule("cache blocks", _forward, _vjp, _supports), backend="numpy")
