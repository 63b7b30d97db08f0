"""Softmax cross-entropy on the CPU, compiled: the logits stay, and two numbers a row are kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import softmax_cross_entropy

_FILE = "softmax_cross_entropy/softmax_cross_entropy.cpp"

_losses = native.Function(_FILE, "cross_entropy_forward",
                          "logits: real[2], labels: int32[1], loss: real[1], largest: real[1], total: real[1], "
                          "rows: int64, classes: int64, threads: int32")
_differentiate = native.Function(_FILE, "cross_entropy_backward",
                                 "logits: real[2], labels: int32[1], largest: real[1], total: real[1], "
                                 "d_loss: real[1], d_logits: real[2], rows: int64, classes: int64, threads: int32")


class _Saved(NamedTuple):
    logits: Array
    labels: Array
    largest: Array
    total: Array
    shape: tuple[int, ...]


def _supports(be: Backend, logits: Array, labels: Array) -> str | None:
    return native.failure(_FILE, logits.dtype) if logits.size else "there are no logits"


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, _Saved]:
    rows, classes = prod(logits.shape[:-1]), logits.shape[-1]
    flat = np.ascontiguousarray(logits).reshape(rows, classes)
    target = np.ascontiguousarray(labels).reshape(rows)
    loss, largest, total = (np.empty(rows, flat.dtype) for _ in range(3))
    _losses(flat, target, loss, largest, total, rows, classes, native.threads_for(flat.nbytes))
    return loss.reshape(labels.shape), _Saved(flat, target, largest, total, logits.shape)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    if not needs[0]:
        return None, None
    logits = saved.logits
    d_logits = host.empty_like(logits)
    d_loss = np.ascontiguousarray(gout).reshape(-1)
    _differentiate(logits, saved.labels, saved.largest, saved.total, d_loss, d_logits, *logits.shape,
                   native.threads_for(logits.nbytes))
    return d_logits.reshape(saved.shape), None


def attach() -> None:
    """Add the rule to `softmax_cross_entropy`."""
    softmax_cross_entropy.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
