"""The bounds on gradients that a run may have."""

from __future__ import annotations

from functools import partial
from typing import Literal

from duoln import Tensor, ops, optim

Clip = Literal["paper", "norm", "none"]
LIMIT = 10.0
"""Of the norm of all gradients together."""


def clip_as_published(limit: float) -> optim.Clip:
    """The bound that the paper's code uses instead of `clip_global_norm`.

    It compares the norm n of all gradients with limit^2. If n is larger, it multiplies them by limit / sqrt(n), so that
    the norm becomes limit * sqrt(n). Otherwise nothing changes.
    """
    return optim.scale_by_norm(partial(_scale_as_published, limit))


def _scale_as_published(limit: float, norm: Tensor) -> Tensor:
    return ops.where(norm > limit * limit, limit / ops.sqrt(ops.maximum(norm, limit * limit)), 1.0)


def make(clip: Clip, learning_rate: float) -> optim.Adam:
    """Adam with the bound of that name."""
    bounds = {"paper": clip_as_published, "norm": optim.clip_global_norm}
    return optim.Adam(learning_rate=learning_rate, clip=None if clip == "none" else bounds[clip](LIMIT), donate=True)
