"""The training step as a pure function of trees of tensors.

The masks of a model's `nn.Dropout` layers travel with each training batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import STORAGE, Backend
from duoln.core import Tensor, compile, value_and_grad
from duoln.data import Batch
from duoln.data.batches import count_examples
from duoln.distributed.ranks import Ranks
from duoln.errors import DtypeError, UsageError
from duoln.nn import DropoutMasks, Module, Params, with_masks
from duoln.optim import Optimizer
from duoln.runs.precision import FLOAT32, stored_batch, stored_params
from duoln.runtime import init, tensor, to_tensors
from duoln.tasks.task import Task

State = dict[str, Any]
"""`{"params": ..., "slots": ...}`."""
Figures = dict[str, Tensor]
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


def make_gradients(task: Task, model: Module, precision: str = FLOAT32) -> Callable[..., tuple[Tensor, Any]]:
    """The first half of a step, `(params, batch) -> (loss, gradients)`."""

    def gradients(params: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        return value_and_grad(lambda p: training_loss(task, model, p, batch, precision))(params)

    return gradients


def make_update(optimizer: Optimizer) -> Callable[..., tuple[State, Figures]]:
    """The second half, `(state, loss, gradients, rate) -> (state, figures)`."""

    def update(state: State, loss: Tensor, gradients: Any, rate: Tensor) -> tuple[State, Figures]:
        params, slots, norm = optimizer.update_with_norm(state["params"], gradients, state["slots"], rate)
        return {"params": params, "slots": slots}, {"loss": loss, "gradient_norm": norm}

    return update


def make_step(task: Task, model: Module, optimizer: Optimizer,
              precision: str = FLOAT32) -> Callable[..., tuple[State, Figures]]:
    """The training step `(state, batch, rate) -> (state, figures)`.

    `rate` is the learning rate as a 0-d tensor. The figures are 0-d tensors too: the loss, and the common norm of all
    gradients before they are clipped.
    """
    gradients_of, update = make_gradients(task, model, precision), make_update(optimizer)

    def step(state: State, batch: dict[str, Tensor], rate: Tensor) -> tuple[State, Figures]:
        return update(state, *gradients_of(state["params"], batch), rate)

    return step


def start_state(model: Module, optimizer: Optimizer, seed: int, backend: Backend) -> State:
    """Parameters and slots before the first step; they have the same bits on every backend.

    Raises:
        DtypeError: a parameter has 16 bits. An update of it would have 32.
    """
    params = init(model, seed, backend)
    for path, leaf in tree.items(params):
        if leaf.dtype in STORAGE:
            raise DtypeError(f"[train] parameter {path!r}: expected weights that start in float32, found {leaf.dtype}; "
                             "precision='bf16' stores a copy of them in 16 bits")
    return {"params": params, "slots": optimizer.init(params)}


def make_ranked_step(task: Task, model: Module, optimizer: Optimizer, ranks: Ranks,
                     precision: str = FLOAT32) -> Callable[..., tuple[State, Figures]]:
    """As `make_step`, for this rank's share of the batch, which the step takes out of the whole batch on the host.
    Masks of dropout in it are those of the share.

    The loss is multiplied before its gradient is taken, so that an operator that clips gradients on their way clips
    those of the whole batch. The gradients are exchanged between two compiled halves, and the optimizer clips after it.
    """

    def gradients(params: Any, batch: dict[str, Tensor], part: Tensor) -> tuple[Tensor, Any]:
        return value_and_grad(lambda p: training_loss(task, model, p, batch, precision) * part)(params)

    gradients_of, update = compile(gradients), compile(make_update(optimizer))

    def step(state: State, batch: Batch, rate: Tensor) -> tuple[State, Figures]:
        whole, masks = split_batch(batch)
        own = ranks.share(whole, task.batch_axes)
        part = ranks.part_of_loss(task, own, whole)
        loss, gradients = ranks.total(gradients_of(state["params"], to_tensors({**own, **masks}, rate.backend),
                                                   tensor(np.float32(part), rate.backend)), part)
        result: tuple[State, Figures] = update(state, loss, gradients, rate)
        return result

    return step


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
