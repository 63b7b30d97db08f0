"""Checks, before ranks train, that the losses of a batch's shares add up to the loss of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import value_and_grad
from duoln.data import Batch
from duoln.data.batches import Axes, examples
from duoln.distributed.ranks import Ranks, share_size
from duoln.errors import UsageError
from duoln.nn import Module, no_dropout
from duoln.optim import global_norm
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks.task import Task

_EXAMPLES = 4
"""The number of examples of a share that are enough; fewer differ more from those of another share."""
_NOISE = 0.01
_TOLERANCE = 2e-3
"""The largest difference of two gradients relative to their norm that rounding alone, also that of TF32, explains."""


def check_sharing(ranks: Ranks, task: Task, model: Module, params: Any, batches: Sequence[Batch],
                  backend: Backend) -> None:
    """Check that the gradient of each batch is the sum of those of its shares' parts of the loss.

    A mean over real tokens is also one over examples where no batch has padding, so the first batch is checked once
    more with less in the shares of half of the ranks. A few examples of every share are enough. The parameters are not
    those of the start: a last layer of zeros would give every batch the same loss.

    Raises:
        UsageError: it is not.
    """
    noise = Stream(0, "ranks")
    params = tree.map(lambda p: p + to_tensors(_NOISE * noise.gaussian(p.shape), backend, p.dtype), params)

    def gradients(batch: Batch, part: float) -> Any:
        with no_dropout():
            return value_and_grad(lambda p: task.loss(model, p, to_tensors(batch, backend)) * part)(params)[1]

    some = [few_of_each_share(batch, task.batch_axes, ranks.size) for batch in batches]
    for whole in (*some, uneven(some[0], task.batch_axes, ranks.size)):
        own = ranks.share(whole, task.batch_axes)
        part = ranks.part_of_loss(task, own, whole)
        expected, total = gradients(whole, 1.0), ranks.total(gradients(own, part), part)
        norm = float(global_norm(expected))
        difference = float(global_norm(tree.map(lambda a, b: a - b, expected, total)))
        # A gradient that is not finite is the subject of DivergedError, or of a batch that no data holds.
        if ranks.any(np.isfinite(norm) and not difference <= _TOLERANCE * norm):
            raise UsageError(
                f"[{task.name}] {ranks.size} ranks cannot share this variant's batches: expected the gradient of a "
                "batch to be the mean of those of its parts, weighted by the task's `loss_weight`; found a "
                f"difference of {difference:.3g} at a norm of {norm:.3g}. A mean over real tokens wants `loss_weight` "
                "to count them, a sum to give 1. Batch norm, a loss over pairs of examples, or an array without its "
                "place in `batch_axes`, cannot be shared")


def few_of_each_share(batch: Batch, axes: Axes, size: int) -> Batch:
    """The first examples of each share, together not more than one share has, so that they need no more memory."""
    count = share_size(batch, axes, size)
    few = max(1, min(_EXAMPLES, count // size))
    return examples(batch, axes, np.arange(size * count).reshape(size, count)[:, :few].reshape(-1))


def uneven(batch: Batch, axes: Axes, size: int) -> Batch:
    """The batch with less in the first half of the shares, as if they had more padding: every other value of each
    mask and of each array of indices is 0 there, and lengths are half as large.
    """
    changed = dict(batch)
    for name, array in batch.items():
        axis = axes.get(name, 0)
        if axis is None:
            continue
        whole = np.moveaxis(array, axis, 0).copy()
        part = whole[:len(whole) // size * (size // 2)]
        if array.ndim == 1 and array.dtype.kind in "iu" and part.max(initial=0) > 1:
            part[part > 0] -= part[part > 0] // 2
        elif array.dtype.kind in "biu" or np.isin(array, (0, 1)).all():
            part.reshape(-1)[1::2] = 0
        changed[name] = np.moveaxis(whole, 0, axis)
    return changed
