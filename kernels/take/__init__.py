"""The gradient of an embedding on the CPU, compiled: a thread has words of its own, so the order of sums is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout
from duoln.ops import take
from duoln.ops.index import from_front

_FILE = "take/take.cpp"

_add_rows = Launch("take/take", "take_gradient", "dy: own, order: own int64, bounds: own int64, "
                                                 "d_table: own[words, width], add: int32, threads: int32")


_THREADS, _MOST_GROUPS = 256, 1024
"""On CUDA, the threads of a block, and the largest number of groups of columns."""


def _plan(width: int, words: int) -> Layout:
    return Layout((words, min(-(-width // _THREADS), _MOST_GROUPS)), (min(_THREADS, -(-width // 32) * 32),))


TAKEN_ROWS = Launch("take/take", "take_forward", "table: stored[words, width], indices: int32[taken] "
                    "-> rows: stored[taken, width]", lambda width, taken: _plan(width, words=taken))
BACKWARD = Launch("take/take", "take_backward", "g: stored[taken, width], sorted: int32[taken], order: int32[taken], "
                  "words: int32 -> d_table: stored[words, width]", _plan)
"""Those of `take.cupy`."""


class _Saved(NamedTuple):
    words: int
    indices: Array


def _supports(be: Backend, x: Array, indices: Array, axis: int) -> str | None:
    if axis != 0 or x.ndim != 2 or x.dtype.kind != "f":
        return f"axis {axis} of {x.ndim} in {be.dtype(x)}: only rows of a table of floats"
    return native.refusal(_FILE, x.dtype) if x.size and indices.size else "there are no values"


def _forward(be: Backend, x: Array, indices: Array, axis: int) -> tuple[Array, _Saved]:
    return be.take(x, indices, 0), _Saved(len(x), indices)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    return _gradient(be, [(saved, gout)]) if needs[0] else None, None


def _gradient(be: Backend, uses: Sequence[tuple[_Saved, Array]]) -> Array:
    """The gradient of a table. Of a second use only the words that it took are added: a table may be large."""
    d_table = host.empty((uses[0][0].words, uses[0][1].shape[-1]), uses[0][1].dtype)
    for number, (saved, gout) in enumerate(uses):
        flat = from_front(be, np.reshape(saved.indices, -1), saved.words)
        bounds = np.zeros(saved.words + 1, np.int64)
        np.cumsum(np.bincount(flat, minlength=saved.words), out=bounds[1:])
        dy = np.ascontiguousarray(gout).reshape(flat.size, gout.shape[-1])
        _add_rows["numpy"](dy, np.argsort(flat, kind="stable"), bounds, d_table, number > 0,
                           native.threads_for(dy.nbytes + d_table.nbytes))
    return d_table


def attach(backend: str) -> None:
    """Add the rule to `take` of NumPy's arrays; those of the other libraries are in files of their own."""
    if backend == "numpy":
        take.add(Rule("compiled", _forward, _vjp, _supports, pooled={0: _gradient}), backend="numpy")
