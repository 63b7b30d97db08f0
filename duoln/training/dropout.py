"""Dropout in a task's training: the masks of a model's `nn.Dropout` layers travel with each training batch."""

from __future__ import annotations

from typing import Any

from duoln.core import Tensor
from duoln.data import Batch
from duoln.data.batches import count_examples
from duoln.distributed.ranks import Ranks
from duoln.errors import UsageError
from duoln.nn import DropoutMasks, Module, Params, with_masks
from duoln.runs.precision import stored_batch, stored_params
from duoln.runtime import init, to_tensors
from duoln.tasks.task import Task

_BEGINS = "dropout mask of "
"""The beginning of the names of masks among the arrays of a batch; the path of the layer follows."""


def split_batch(batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a batch that are the task's own, and its masks of dropout."""
    masks = {name: x for name, x in batch.items() if name.startswith(_BEGINS)}
    return {name: x for name, x in batch.items() if name not in masks}, masks


def training_loss(task: Task, model: Module, params: Params, batch: dict[str, Tensor], precision: str) -> Tensor:
    """The task's loss of a batch in this precision, with the dropout whose masks are in the batch."""
    own, masks = split_batch(batch)
    by_path = {name.removeprefix(_BEGINS): mask for name, mask in masks.items()}
    stored = stored_params(params, precision)
    return task.loss(model, with_masks(stored, by_path) if masks else stored, stored_batch(own, precision))


class TaskDropout:
    """Adds the masks of dropout to a task's training batches: `dropout(update, batch)`.

    The losses of a few batches show the shapes; they are computed on the host, once for each form of a batch.

    Several ranks draw the masks of the whole batch, and each adds its share: together they train as one process.
    """

    def __init__(self, task: Task, model: Module, seed: int, ranks: Ranks | None = None) -> None:
        self._task, self._ranks = task, ranks
        self._masks = DropoutMasks(model, seed, forward=lambda params, batch: task.loss(model, params, batch))
        self._params: Params = init(model, 0, "numpy") if self._masks.layers else {}

    def __call__(self, update: int, batch: Batch) -> Batch:
        """The batch with its masks, or with those of this rank's share.

        Raises:
            UsageError: the examples of a mask are not along one axis, so ranks cannot share it.
        """
        if not self._masks.layers:
            return batch
        shapes = self._shapes(batch)
        masks = self._masks.on_host(update, shapes)
        if self._ranks is not None:
            of_share = self._shapes(self._ranks.share(batch, self._task.batch_axes))
            for path, mask in masks.items():
                axes = [k for k, size in enumerate(of_share[path].shape) if size != mask.shape[k]]
                if len(axes) > 1:
                    raise UsageError(f"[{self._task.name}] expected examples along one axis of the Dropout at "
                                     f"'{path}', found {mask.shape} for a batch and {of_share[path].shape} for a share")
                for axis in axes:
                    self._check_order(path, axis, mask.shape[axis], batch)
                    begin = self._ranks.rank * of_share[path].shape[axis]
                    masks[path] = mask.take(range(begin, begin + of_share[path].shape[axis]), axis)
        return {**batch, **{f"{_BEGINS}{path}": mask for path, mask in masks.items()}}

    def _check_order(self, path: str, axis: int, size: int, batch: Batch) -> None:
        """Raises UsageError unless examples lie one after another along the axis of a mask, as a share has them."""
        first = axis == 0 and not any(self._task.batch_axes.values())
        if not first and size != count_examples(batch, self._task.batch_axes):
            raise UsageError(f"[{self._task.name}] expected one example after another along axis {axis} of the Dropout "
                             f"at '{path}', which ranks share, found {size} places for "
                             f"{count_examples(batch, self._task.batch_axes)} examples; drop values before they are "
                             "reshaped")

    def _shapes(self, batch: Batch) -> Any:
        return self._masks.shapes(self._params, to_tensors(batch, "numpy"))
