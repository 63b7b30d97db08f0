"""Softmax cross-entropy on CUDA: it reads the logits without a copy and keeps two floats per row for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.settings import CROSS_ENTROPY
from duoln.ops import softmax_cross_entropy

_NARROW, _ROWS = 1024, 4
_FILE = "softmax_cross_entropy/softmax_cross_entropy.cu"
_forward_rows = launch.stored_kernels(
    _FILE, "cross_entropy_forward", "logits: storage[2], labels: int32[1], loss: float32[1], kept: float32[2], "
                                    "rows: int32, classes: int32")
_backward_rows = launch.stored_kernels(
    _FILE, "cross_entropy_backward", "logits: storage[2], labels: int32[1], kept: float32[2], g: float32[1], "
                                     "g_step: int32, d_logits: storage[2], rows: int32, classes: int32")


class _Saved(NamedTuple):
    logits: Array
    labels: Array
    kept: Array


def _layout(logits: Array) -> tuple[tuple[int], tuple[int, int], dict[str, int]]:
    rows, classes = logits.shape
    storage = launch.storage_macro(logits)
    if classes <= _NARROW:
        return (-(-rows // _ROWS),), (32, _ROWS), {**CROSS_ENTROPY[0], **storage}
    return (rows,), (256, 1), {**CROSS_ENTROPY[1], **storage}


def _supports(be: Backend, logits: Array, labels: Array) -> str | None:
    if be.dtype(logits) not in ("float32", *STORAGE):
        return f"the kernel is for float32 and 16 bits, not {be.dtype(logits)}"
    return launch.too_large(logits) if logits.size else "there are no values"


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, _Saved]:
    rows, classes = prod(logits.shape[:-1]), logits.shape[-1]
    flat = cupy.ascontiguousarray(logits).reshape(rows, classes)
    picked = cupy.ascontiguousarray(labels).reshape(rows)
    loss, kept = cupy.empty(rows, dtype=np.float32), cupy.empty((rows, 2), dtype=np.float32)
    grid, block, macros = _layout(flat)
    _forward_rows[flat.dtype](grid, block, (flat, picked, loss, kept, rows, classes), macros)
    return loss.reshape(labels.shape), _Saved(flat, picked, kept)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Any]:
    if not needs[0]:
        return None, None
    rows, classes = saved.logits.shape
    same = not any(gout.strides)  # one number, broadcast: the gradient of a mean
    g = gout[(0,) * gout.ndim + (None,)] if same else cupy.ascontiguousarray(gout).reshape(rows)
    d_logits = cupy.empty_like(saved.logits)
    grid, block, macros = _layout(saved.logits)
    _backward_rows[d_logits.dtype](grid, block, (saved.logits, saved.labels, saved.kept, g, 0 if same else 1, d_logits,
                                                 rows, classes), macros)
    return d_logits.reshape(*gout.shape, classes), None


def attach() -> None:
    """Add the rule to `softmax_cross_entropy`."""
    softmax_cross_entropy.add(Rule("cuda row", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
