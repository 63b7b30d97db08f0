"""Several processes train one model: each computes its share of every batch, and all make the same update.

The global batch, its noise and the state are those of a run in one process; only the order in which a mean is
added up differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from duoln import tree
from duoln.backends.protocol import Array, Backend
from duoln.core import Tensor, value_and_grad
from duoln.data import Batch
from duoln.data.batches import Axes, count_examples, examples
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


class Group(Protocol):
    """This process among several, numbered from 0."""

    rank: int
    size: int

    def all_sum(self, x: Array) -> Array:
        """The sum of all ranks' `x`, of one shape and dtype; equal to the bit on every rank, and every time.

        Raises:
            RankError: another rank is gone.
        """

    def leave(self) -> None:
        """Leave the group."""


class Ranks:
    """This process among those that train one model.

    Args:
        group: the processes.
        backend: the backend of the arrays that they exchange.
    """

    def __init__(self, group: Group, backend: Backend) -> None:
        self._group, self._backend = group, backend
        self.rank, self.size = group.rank, group.size

    def share(self, batch: Batch, axes: Axes) -> Batch:
        """Our part of a batch; all parts have the same number of examples, in order. Raises as `share_size`."""
        count = share_size(batch, axes, self.size)
        return examples(batch, axes, slice(self.rank * count, (self.rank + 1) * count))

    def part_of_loss(self, task: Task, own: Batch, whole: Batch) -> float:
        """The factor of the loss of our share with which the losses of all shares add up to the loss of the batch.

        Raises:
            UsageError: the task gives no weight of at least 0.
        """
        weights = [task.loss_weight(part) for part in (own, whole)]
        for weight in weights:
            if not isinstance(weight, int | float | np.integer | np.floating) or not 0 <= weight < np.inf:
                raise UsageError(f"[{task.name}] loss_weight: expected a number of at least 0, found {weight!r:.80}")
        return float(weights[0] / weights[1]) if weights[1] else 1 / self.size

    def total(self, tensors: Any, part: float) -> Any:
        """The sum over all processes of every tensor of a tree that a share of this part of the loss gave.

        The loss of a share whose part is 0 may be 0 / 0, so nothing of it is added.
        """
        return self._sum(tensors if part else tree.map(self._zeros, tensors))

    def broadcast(self, tensors: Any) -> Any:
        """The tree of tensors of process 0."""
        return self._sum(tensors if self.rank == 0 else tree.map(self._zeros, tensors))

    def texts(self, own: str) -> list[str]:
        """The texts of all processes, by rank."""
        encoded = np.frombuffer(own.encode(), np.uint8)
        sizes = np.zeros(self.size, np.int32)
        sizes[self.rank] = encoded.size
        ends = np.cumsum(self._sum_of(sizes))
        letters = np.zeros(ends[-1], np.int32)
        letters[ends[self.rank] - encoded.size:ends[self.rank]] = encoded
        return [part.astype(np.uint8).tobytes().decode() for part in np.split(self._sum_of(letters), ends[:-1])]

    def check_same(self, own: Mapping[str, str]) -> None:
        """Check that all processes have the same short texts by name; all of them raise the same error.

        Raises:
            UsageError: they differ; the message has the values and the rank.
        """
        first, *peers = [json.loads(text) for text in self.texts(json.dumps(dict(own)))]
        differences = [
            f"expected {key} {first.get(key, 'none')} as on rank 0, found {peer.get(key, 'none')} on rank {rank}"
            for rank, peer in enumerate(peers, 1) for key in {**first, **peer} if first.get(key) != peer.get(key)]
        if differences:
            raise UsageError(f"[ranks] {'; '.join(differences)}. All ranks train one model, so all need the same")

    def _sum_of(self, values: np.ndarray) -> np.ndarray:
        if not values.size:
            return values
        total: np.ndarray = self._backend.to_numpy(self._group.all_sum(self._backend.asarray(values)))
        return total

    def any(self, flag: bool) -> bool:
        """True if the flag is true in any process."""
        return bool(self._sum_of(np.array([flag], np.float32))[0] > 0)

    def leave(self) -> None:
        """Leave the group."""
        self._group.leave()

    def _sum(self, tensors: Any) -> Any:
        """One exchange per dtype: few large messages, in one order on every process, that of the paths."""
        named = list(tree.items(tensors))
        leaves = [leaf for _, leaf in named]
        order = sorted(range(len(named)), key=lambda k: named[k][0])
        totals: list[Tensor | None] = [None] * len(leaves)
        for dtype in sorted({t.dtype for t in leaves}):
            places = [k for k in order if leaves[k].dtype == dtype]
            flat = [self._backend.reshape(leaves[k].data, (leaves[k].size,)) for k in places]
            total = self._group.all_sum(self._backend.concat(flat))
            start = 0
            for k in places:
                end = start + leaves[k].size
                totals[k] = Tensor(self._backend.reshape(total[start:end], leaves[k].shape), self._backend)
                start = end
        return tree.unflatten(tensors, totals)

    def _zeros(self, like: Tensor) -> Tensor:
        return Tensor(self._backend.zeros(like.shape, like.dtype), self._backend)


def share_size(batch: Batch, axes: Axes, size: int) -> int:
    """The number of examples in each of `size` shares of a batch. Raises UsageError if they cannot be equal."""
    count, rest = divmod(count_examples(batch, axes), size)
    if rest or not count:
        raise UsageError(f"[ranks] expected a batch that {size} ranks can share out evenly, found "
                         f"{count * size + rest} examples; choose another batch_size")
    return count


# The check that a loss can be shared ------------------------------------------------------------

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
