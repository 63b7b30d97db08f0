"""What a training step takes of memory, before it is taken."""

from __future__ import annotations

from typing import NamedTuple

from duoln import tree
from duoln.core.footprint import kept_bytes
from duoln.data import Batch, count_examples, examples
from duoln.nn import Module
from duoln.runtime import to_tensors
from duoln.tasks.task import Task
from duoln.training.train_step import State

_FEW, _MORE = 2, 4
"""Examples of the two batches from which a whole one is reckoned; batch norm wants two at least."""


class StepMemory(NamedTuple):
    """Bytes that a training step holds at its widest point, where the way back begins.

    What single operators use in passing comes on top; so does the library itself.
    """

    state: int
    """Parameters and the optimiser's slots."""
    gradients: int
    batch_size: int
    fixed: int
    """Kept for the gradient whatever the batch."""
    per_example: int
    """Kept for the gradient for each example, and its data."""

    @property
    def total(self) -> int:
        return self.state + self.gradients + self.fixed + self.per_example * self.batch_size

    def largest_batch(self, free: int) -> int:
        """How many examples fit into so many bytes; 0 if none does."""
        room = free - self.state - self.gradients - self.fixed
        if room < 0:
            return 0
        return room // self.per_example if self.per_example else self.batch_size

    def __str__(self) -> str:
        kept = self.fixed + self.per_example * self.batch_size
        return (f"{size(self.total)} a step (parameters and slots {size(self.state)}, gradients "
                f"{size(self.gradients)}, kept for the way back {size(kept)})")


def estimate(task: Task, model: Module, state: State, batch: Batch, donates: bool) -> StepMemory:
    """The memory of a step on this batch, from the loss of two small parts of it.

    It takes what is kept to grow evenly with the number of examples. Where a batch cannot be taken apart (a task
    without its `batch_axes`, a loss that wants whole batches) it is looked at as a whole, and as one example.

    On NumPy it comes within a third of a step's peak; on MLX, whose graph holds more than can be seen from here, it is
    a lower bound (tests/test_memory.py).

    Args:
        task, model: what is trained.
        state: parameters and slots.
        batch: of the size that will be trained on.
        donates: whether the optimiser overwrites the state, instead of making another one.
    """
    params = tree.leaves(state["params"])
    backend = params[0].backend

    def kept(part: Batch) -> int:
        tensors = to_tensors(part, backend)
        count: int = (kept_bytes(lambda p: task.loss(model, p, tensors), state["params"])
                + sum(t.data.nbytes for t in tensors.values()))
        return count

    state_bytes = sum(t.data.nbytes for t in tree.leaves(state)) * (1 if donates else 2)
    gradients = sum(t.data.nbytes for t in params)
    try:
        count = count_examples(batch, task.batch_axes)
        few, more = (kept(examples(batch, task.batch_axes, slice(0, min(n, count)))) for n in (_FEW, _MORE))
    except Exception:  # whatever is wrong with the whole batch too is raised by the next line
        return StepMemory(state_bytes, gradients, 1, 0, kept(batch))
    if count <= _MORE:
        return StepMemory(state_bytes, gradients, count, 0, more // count)
    per_example = max(more - few, 0) // (_MORE - _FEW)
    return StepMemory(state_bytes, gradients, count, max(few - _FEW * per_example, 0), per_example)


def size(count: int) -> str:
    """Bytes as a person reads them, such as "48 MB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:,.0f} {unit}"
    return f"{count} bytes"
