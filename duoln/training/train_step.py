"""The training step as a pure function of trees of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import STORAGE, Backend
from duoln.core import Tensor, compile, value_and_grad
from duoln.data import Batch
from duoln.distributed.ranks import Ranks
from duoln.errors import DtypeError
from duoln.nn import Module
from duoln.optim import Optimizer
from duoln.runs.precision import FLOAT32
from duoln.runtime import init, tensor, to_tensors
from duoln.tasks.task import Task
from duoln.training.dropout import split_batch, training_loss

State = dict[str, Any]
"""`{"params": ..., "slots": ...}`."""
Figures = dict[str, Tensor]


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
