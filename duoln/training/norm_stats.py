"""`--watch norm-stats`: statistics of every layer, measured beside the training and without any effect on it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from duoln.core import Tensor
from duoln.core.arguments import check_choice, check_integer
from duoln.nn import Module
from duoln.nn.observing import observed, own_arrays
from duoln.runs.norm_stats import LayerStats
from duoln.runtime import to_tensors
from duoln.training.train_step import make_gradients
from duoln.training.trainer import Trainer

WATCHES = ("norm-stats",)
"""The names of what a run can watch."""


class Watch:
    """When the statistics of a run's layers are measured: before the first update, and then in an interval.

    Args:
        name: what is watched, one of `WATCHES`.
        every: the updates between two measurements; None is at every evaluation.

    Raises:
        UsageError: the name is unknown. ShapeError: `every` is below 1. DtypeError: one of them is of another type.
    """

    def __init__(self, name: str, every: int | None = None) -> None:
        check_choice("watch", "what is watched as", name, WATCHES)
        self.every = None if every is None else check_integer("watch", "every", every, 1)

    def is_due(self, update: int, evaluates: bool) -> bool:
        """True if a measurement is due after this update."""
        return evaluates if self.every is None else update % self.every == 0


def measure(trainer: Trainer) -> dict[str, LayerStats]:
    """The statistics of the layers of a trainer's model, with its present parameters, by path.

    They come from a pass of their own over the batch of the next update, or over the last batch after the last update:
    the loss and its gradient as in a training step, operator by operator and not compiled, and without an update.
    A layer is a module that has arrays of its own or no modules in it.
    """
    update = max(min(trainer.update, trainer.last_update - 1), 0)
    batch = trainer.dropout(update, trainer.splits.train(update))
    moments: dict[str, _Moments] = {}

    def tell(path: str, layer: Module, output: Tensor) -> None:
        before = moments.get(path, _Moments(0, 0.0, 0.0))
        moments[path] = before.with_values(output.backend.to_numpy(output.data))

    params = trainer.state["params"]
    with observed(trainer.model, tell):
        _, gradients = make_gradients(trainer.task, trainer.model, trainer.precision)(
            params, to_tensors(batch, trainer.backend))
    stats = {}
    for path, layer in trainer.model.modules():
        arrays = own_arrays(layer, gradients, path)
        if arrays or not layer.children():
            of_outputs = moments.get(path)
            with np.errstate(invalid="ignore", over="ignore"):
                norm = math.sqrt(sum(float((t.numpy().astype(np.float64) ** 2).sum()) for t in arrays))
            stats[path] = LayerStats(of_outputs and of_outputs.mean, of_outputs and of_outputs.variance,
                                     norm if arrays else None)
    return stats


class _Moments(NamedTuple):
    """The mean of some values, and the sum of the squares of their distances from it, in float64."""

    size: int
    mean: float
    squares: float

    @property
    def variance(self) -> float:
        return self.squares / self.size if self.size else math.nan

    def with_values(self, values: np.ndarray) -> _Moments:
        """The moments after merging more values, by the formula of Chan, Golub and LeVeque (1979)."""
        if not values.size:
            return self
        with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite give a NaN
            more = values.astype(np.float64)
            mean, size = more.mean(), self.size + more.size
            squares, apart = ((more - mean) ** 2).sum(), mean - self.mean
            return _Moments(size, float(self.mean + apart * more.size / size),
                            float(self.squares + squares + apart * apart * self.size * more.size / size))
