"""Whether a compiled training step computes the bits of the step itself, on this device: a task's smoke step.

    outcome = graphs.compare(backend, "mnist")

On CUDA the compiled step is one graph, if it can be captured; the first two updates are recorded, the third one is
captured, and later ones are launches of the graph.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import numpy as np

from duoln import runtime, tree
from duoln.backends.protocol import Backend
from duoln.core import compile
from duoln.errors import CompileWarning
from duoln.tasks.registry import find_task
from duoln.tasks.settings import make_config
from duoln.training.dropout import TaskDropout
from duoln.training.train_step import make_step, start_state

TASKS = ("mnist", "draw", "handwriting", "order_embeddings", "attentive_reader", "skip_thoughts", "convnet", "las",
         "transformer")
_NORMALISED = ("ln", "both", "pre")
"""The variant of a task with layer norm: it has one of these names."""
_RATE = 1e-2


class GraphOutcome(NamedTuple):
    """A step as it is, beside the same step compiled."""

    task: str
    variant: str
    updates: int
    obstacle: str
    """Why the compiled step was not repeated as one graph, or not repeated at all; empty if it was."""
    differing: list[str]
    """The figures and parameters whose bits are not those of the step itself, with the update after which they were
    not for the first time."""
    losses: list[float]
    """Of the compiled step."""

    @property
    def passed(self) -> bool:
        """Whether all bits are equal; a step that is not repeated passes, and is slow."""
        return not self.differing


def compare(backend: Backend, task_name: str, updates: int = 6) -> GraphOutcome:
    """Make the same updates by a task's step and by the compiled step, on data that are made here.

    Every update has the same batch, because other batches may have other shapes and so other graphs, and a rate of its
    own.

    Args:
        backend: where to train.
        task_name: one of the tasks.
        updates: at least 4, so that a graph is launched.

    Raises:
        UsageError: there is no such task.
    """
    task = find_task(task_name, [task_name])
    variant = next(name for name in _NORMALISED if name in task.variants)
    cfg = make_config(task, variant, "smoke")
    model, optimizer, splits = task.model(cfg), task.optimizer(cfg), task.data(cfg)
    step, dropout = make_step(task, model, optimizer), TaskDropout(task, model, cfg.seed)
    eager, graph = (start_state(model, optimizer, 0, backend) for _ in range(2))
    compiled = compile(step)
    differing: dict[str, int] = {}
    losses = []
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        for update in range(1, updates + 1):
            batch = runtime.to_tensors(dropout(0, splits.train(0)), backend)
            rate = runtime.tensor(np.float32(_RATE / update), backend)
            eager, figures = step(eager, batch, rate)
            graph, of_graph = compiled(graph, batch, rate)
            for path in _differ({**figures, **eager}, {**of_graph, **graph}):
                differing.setdefault(path, update)
            losses.append(float(of_graph["loss"].item()))
    obstacle = [str(w.message) for w in raised if issubclass(w.category, CompileWarning)]
    if backend.name == "cupy" and os.environ.get("DUOLN_GRAPH") == "0":
        obstacle.append("DUOLN_GRAPH is 0")
    for unrelated in (w for w in raised if not issubclass(w.category, CompileWarning)):
        warnings.warn_explicit(unrelated.message, unrelated.category, unrelated.filename, unrelated.lineno)
    return GraphOutcome(task_name, variant, updates, "; ".join(obstacle),
                        [f"{path}, from update {update} on" for path, update in differing.items()], losses)


def _differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    pairs = zip(tree.items(a), tree.leaves(b), strict=True)
    return [path for (path, x), y in pairs if x.numpy().tobytes() != y.numpy().tobytes()]
