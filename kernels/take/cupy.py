"""`take` on CUDA, with NaN for an index out of range, in one pass; its gradient without atomics on floats and without a
count on the host.

Along another axis than the first, the entries of each index are brought together in one row, and apart again after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend, Shape
from duoln.core import Rule
from duoln.kernels.launch import cuda as launch
from duoln.kernels.take import BACKWARD, TAKEN_ROWS
from duoln.ops import take
from duoln.ops.index import from_front, gathered


class _Saved(NamedTuple):
    shape: Shape
    indices: Array
    axis: int


def _supports(be: Backend, x: Array, indices: Array, axis: int) -> str | None:
    if be.dtype(x) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
    return launch.too_large(x) if x.size and indices.size else "there are no values"


def _forward(be: Backend, x: Array, indices: Array, axis: int) -> tuple[Array, _Saved]:
    if axis:
        return gathered(be, "take", x, indices, axis), _Saved(x.shape, indices, axis)
    rows = TAKEN_ROWS[be.name](x.reshape(len(x), -1), indices.reshape(-1))
    return rows.reshape(*indices.shape, *x.shape[1:]), _Saved(x.shape, indices, axis)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Any]:
    if not needs[0]:
        return None, None
    shape, axis = saved.shape, saved.axis
    before, words, after = prod(shape[:axis]), shape[axis], prod(shape[axis + 1:])
    flat, width = from_front(be, saved.indices.reshape(-1), words), before * after
    order = cupy.argsort(flat, kind="stable").astype(np.int32)
    g = _first_two_exchanged(gout.reshape(before, flat.size, after)).reshape(flat.size, width)
    d_table = BACKWARD[be.name](g, cupy.take(flat, order), order, words)
    return _first_two_exchanged(d_table.reshape(words, before, after)).reshape(shape), None


def _first_two_exchanged(x: Array) -> Array:
    """(m, n, k) to (n, m, k), contiguous; a reshape if m or n is 1."""
    if 1 in x.shape[:2]:
        return cupy.ascontiguousarray(x).reshape(x.shape[1], x.shape[0], x.shape[2])
    return cupy.ascontiguousarray(cupy.transpose(x, (1, 0, 2)))


def attach() -> None:
    """Add the rule to `take`."""
    take.add(Rule("cuda sorted rows", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
