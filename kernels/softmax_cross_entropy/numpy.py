"""Softmax cross-entropy on the CPU: one pass computes the exponentials, which are kept for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import softmax_cross_entropy


def _supports(be: Backend, logits: Array, labels: Array) -> str | None:
    return None if logits.size else "there are no logits"


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, Any]:
    classes = logits.shape[-1]
    rows = prod(logits.shape[:-1])
    flat = np.ascontiguousarray(logits).reshape(rows, classes)
    target = np.ascontiguousarray(labels).reshape(rows)
    probability = np.empty_like(flat)
    loss = np.empty(rows, flat.dtype)
    ones = np.ones((classes, 1), flat.dtype)
    step = host.rows_per_block(classes, flat.itemsize)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            p = probability[part]
            np.subtract(flat[part], flat[part].max(axis=1, keepdims=True), out=p)
            picked = p[np.arange(len(p)), target[part]]
            np.exp(p, out=p)
            total = p @ ones
            np.log(total[:, 0], out=loss[part])
            loss[part] -= picked
            p /= total

    host.over_rows(rows, classes * flat.itemsize, work)
    return loss.reshape(labels.shape), (probability, target, logits.shape)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    if not needs[0]:
        return None, None
    probability, target, shape = saved
    g = np.reshape(gout, -1)
    dx = probability * g[:, None]
    dx[np.arange(len(g)), target] -= g
    return dx.reshape(shape), None


def attach() -> None:
    """Add the rule to `softmax_cross_entropy`."""
    softmax_cross_entropy.add(Rule("cache blocks", _forward, _vjp, _supports), backend="numpy")
