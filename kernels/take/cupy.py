"""The gradient of an embedding on CUDA, without atomics on floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.ops import take
from duoln.ops.index import from_front

_backward = launch.stored_kernels("take/take.cu", "take_backward", "g: storage[2], sorted: int32[1], order: int32[1], "
                                  "d_table: storage[2], taken: int32, width: int32")


class _Saved(NamedTuple):
    words: int
    indices: Array


def _supports(be: Backend, x: Array, indices: Array, axis: int) -> str | None:
    if axis != 0 or x.ndim != 2:
        return f"axis {axis} of {x.ndim}: only rows of a table"
    if be.dtype(x) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
    return launch.too_large(x) if x.size and indices.size else "there are no values"


def _forward(be: Backend, x: Array, indices: Array, axis: int) -> tuple[Array, _Saved]:
    return cupy.take(x, indices, axis=0), _Saved(x.shape[0], indices)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Any]:
    if not needs[0]:
        return None, None
    flat, width = from_front(be, saved.indices.reshape(-1), saved.words), gout.shape[-1]
    order = cupy.argsort(flat, kind="stable").astype(np.int32)
    g = cupy.ascontiguousarray(gout).reshape(flat.size, width)
    d_table = cupy.empty((saved.words, width), dtype=gout.dtype)
    _backward[g.dtype]((saved.words,), (min(256, -(-width // 32) * 32),),
                       (g, cupy.take(flat, order), order, d_table, flat.size, width), launch.storage_macro(g))
    return d_table, None


def attach() -> None:
    """Add the rule to `take`."""
    take.add(Rule("cuda sorted rows", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
