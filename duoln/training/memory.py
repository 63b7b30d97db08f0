"""An estimate of the memory that a training step needs, before the step runs."""

from __future__ import annotations

from typing import NamedTuple

from duoln import tree
from duoln.core.footprint import kept_bytes
from duoln.data import Batch
from duoln.data.batches import count_examples, examples
from duoln.nn import Module
from duoln.runs.precision import FLOAT32
from duoln.runtime import to_tensors
from duoln.tasks.task import Task
from duoln.training.train_step import State, TaskDropout, training_loss

_FEW, _MORE = 2, 4
"""The sizes of the two batches from which the memory of a whole batch is computed; batch norm needs at least two."""
_SAVED = 3
"""While a checkpoint is written, the host holds the state, and the file's content twice: the library copies it."""


class StepMemory(NamedTuple):
    """The bytes that a training step holds at its peak, when the computation of the gradients begins.

    The temporary memory of single operators and the memory of the library are not included.
    """

    state: int
    """Parameters and the optimizer's slots."""
    gradients: int
    batch_size: int
    fixed: int
    """Kept for the gradient, independent of the batch."""
    per_example: int
    """Kept for the gradient for each example, and its data."""

    @property
    def total(self) -> int:
        return self.state + self.gradients + self.fixed + self.per_example * self.batch_size

    def largest_batch(self, free: int) -> int:
        """The number of examples that fit into `free` bytes; 0 if none does."""
        room = free - self.state - self.gradients - self.fixed
        if room < 0:
            return 0
        return room // self.per_example if self.per_example else self.batch_size

    def __str__(self) -> str:
        kept = self.fixed + self.per_example * self.batch_size
        return (f"{format_bytes(self.total)} a step (parameters and slots {format_bytes(self.state)}, gradients "
                f"{format_bytes(self.gradients)}, kept for the backward pass {format_bytes(kept)})")


def estimate(task: Task, model: Module, state: State, batch: Batch, donates: bool,
             precision: str = FLOAT32) -> StepMemory:
    """The memory of a step on this batch, estimated from the loss of two small parts of the batch.

    The estimate assumes that the kept memory grows linearly with the number of examples. A batch that cannot be split
    (the task has no `batch_axes`, or the loss needs whole batches) is measured as a whole and counts as one example.

    On NumPy the estimate differs from a step's peak by less than a third. On MLX it is a lower bound, because MLX's
    graph holds more memory than this function can measure.

    Args:
        task, model: the task and the model that will be trained.
        state: parameters and slots.
        batch: a batch of the size of the training batches.
        donates: whether the optimizer overwrites the state instead of making a new one.
        precision: of the step.
    """
    params, dropout = tree.leaves(state["params"]), TaskDropout(task, model, seed=0)
    backend = params[0].backend

    def kept(part: Batch) -> int:
        tensors = to_tensors(dropout(0, part), backend)
        count: int = (kept_bytes(lambda p: training_loss(task, model, p, tensors, precision), state["params"])
                + sum(t.data.nbytes for t in tensors.values()))
        return count

    of_state = state_bytes(state) * (1 if donates else 2)
    gradients = sum(t.data.nbytes for t in params)
    try:
        count = count_examples(batch, task.batch_axes)
        few, more = (kept(examples(batch, task.batch_axes, slice(0, min(n, count)))) for n in (_FEW, _MORE))
    except Exception:  # an error that also occurs with the whole batch is raised by the next line
        return StepMemory(of_state, gradients, 1, 0, kept(batch))
    if count <= _MORE:
        return StepMemory(of_state, gradients, count, 0, more // count)
    per_example = max(more - few, 0) // (_MORE - _FEW)
    return StepMemory(of_state, gradients, count, max(few - _FEW * per_example, 0), per_example)


def save_bytes(state: State) -> int:
    """The memory of the host that a save of the state needs, with that of the state itself. Reading takes no more."""
    return _SAVED * state_bytes(state)


def state_bytes(state: State) -> int:
    """The bytes of parameters and slots."""
    return sum(t.data.nbytes for t in tree.leaves(state))


def format_bytes(count: int) -> str:
    """A number of bytes as readable text, such as "48 MB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:,.0f} {unit}"
    return f"{count} bytes"
