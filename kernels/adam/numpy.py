"""Adam on the CPU: all arithmetic of a block runs while the block is in cache, in place if the arrays are donated."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import adam_update


def supports(be: Backend, rate: Array, eps: Array, *arrays: Array, **attrs: Any) -> str | None:
    """The reason why this rule cannot run; None if it can."""
    if not all(a.flags.c_contiguous for a in arrays):
        return "an array is not contiguous"
    return None


def _forward(be: Backend, rate: Array, eps: Array, *arrays: Array, beta1: float, beta2: float,
             donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    params, gradients, moments, squares = (arrays[i * n:(i + 1) * n] for i in range(4))
    if donate and all(a.flags.writeable for a in (*params, *moments, *squares)):
        new = [params, moments, squares]
    else:
        new = [tuple(np.empty_like(a) for a in group) for group in (params, moments, squares)]
    block = host.BLOCK_BYTES // 4
    # The blocks of all tensors form one list, so that the threads share large and small tensors evenly.
    pieces = [(i, start) for i, p in enumerate(params) for start in range(0, p.size, block)]
    flat = [[np.reshape(a, -1) for a in group] for group in (params, gradients, moments, squares, *new)]
    rate, eps = rate[()], eps[()]

    def update(first: int, last: int) -> None:
        for i, start in pieces[first:last]:
            p, g, m, v, new_p, new_m, new_v = [group[i][start:start + block] for group in flat]
            t = host.scratch("adam", g.size, g.dtype)
            np.multiply(m, beta1, new_m)
            np.add(new_m, g, new_m)
            np.multiply(g, g, t)
            np.multiply(v, beta2, new_v)
            np.add(new_v, t, new_v)
            np.sqrt(new_v, t)
            np.add(t, eps, t)
            np.divide(new_m, t, t)
            np.multiply(t, rate, t)
            np.subtract(p, t, new_p)

    host.over_rows(len(pieces), host.BLOCK_BYTES, update)
    return (*new[0], *new[1], *new[2]), None


def attach() -> None:
    """Add the rule to `adam_update`."""
    adam_update.add(Rule("cache blocks", _forward, supports=supports), backend="numpy")
