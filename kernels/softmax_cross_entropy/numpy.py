"""Softmax cross-entropy on the CPU where there is no compiler: the probabilities are kept for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import softmax_cross_entropy


class _Saved(NamedTuple):
    probability: Array
    target: Array
    shape: tuple[int, ...]


def _supports(be: Backend, logits: Array, labels: Array) -> str | None:
    return None if logits.size else "there are no logits"


def _forward(be: Backend, logits: Array, labels: Array) -> tuple[Array, _Saved]:
    rows, classes = prod(logits.shape[:-1]), logits.shape[-1]
    target = np.reshape(labels, rows)
    probability = np.reshape(logits, (rows, classes))
    probability = probability - probability.max(axis=1, keepdims=True)
    picked = probability[np.arange(rows), target]
    np.exp(probability, out=probability)
    total = probability @ np.ones((classes, 1), probability.dtype)
    probability /= total
    return (np.log(total[:, 0]) - picked).reshape(labels.shape), _Saved(probability, target, logits.shape)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, None]:
    if not needs[0]:
        return None, None
    d_loss = np.reshape(gout, -1)
    d_logits = saved.probability * d_loss[:, None]
    d_logits[np.arange(len(d_loss)), saved.target] -= d_loss
    return d_logits.reshape(saved.shape), None


def attach() -> None:
    """Add the rule to `softmax_cross_entropy`."""
    softmax_cross_entropy.add(Rule("interpreted", _forward, _vjp, _supports), backend="numpy")
