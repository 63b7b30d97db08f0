"""Smoothness of the training loss: how fast the loss and its gradient change, with and without layer norm.

The chapter on Listen, Attend and Spell says that normalisation lowers the Lipschitz constant of the loss. Measured like
Santurkar et al. 2018 (How does batch normalization help optimization?), who have the gradient's, too: the variants of a
task are trained from their start, and before every few updates the parameters w are moved against the gradient g of the
batch that comes next, by some distances d in turn. The constants at w along g are the greatest |L(w) - L(w')| / d and
|g(w) - g(w')| / d, where w' = w - d g / |g| and norms are of all parameters together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.core import compile
from duoln.errors import DivergedError
from duoln.plugins.theory.trained import Training
from duoln.runtime import to_tensors
from duoln.training.train_step import make_gradients
from duoln.training.trainer import Trainer

DISTANCES = (0.1, 0.3, 1.0)
"""An update of `las`, preset `small`, moves its 290,000 parameters by 0.06 to 1.6, 0.27 in the median."""


class Constants(NamedTuple):
    """The constants of one variant over the training from one seed."""

    variant: str
    seed: int
    updates: list[int]
    """The updates that were made before each look."""
    loss: list[float]
    """The loss' Lipschitz constant, in nats a unit of distance."""
    gradient: list[float]
    """The gradient's Lipschitz constant."""


class Smoothness(NamedTuple):
    """The constants of all variants and seeds, and what they were measured with."""

    constants: list[Constants]
    task: str
    dataset: str
    every: int
    seeds: list[int]
    distances: list[float]

    def of(self, variant: str) -> list[Constants]:
        """The constants of one variant, of each seed."""
        return [constants for constants in self.constants if constants.variant == variant]


def measure(training: Training) -> Smoothness:
    """Train and measure the constants on the way.

    Raises:
        UsageError, DataError: as `Training.trainers`. DivergedError: a loss or a gradient is not finite.
    """
    measured, dataset = list[Constants](), ""
    for trainer in training.trainers("smoothness"):
        dataset = trainer.splits.dataset.label
        gradients = compile(make_gradients(trainer.task, trainer.model))
        constants = Constants(trainer.variant, trainer.cfg.seed, [], [], [])
        for update in range(training.updates):
            if update % training.every == 0:
                loss, gradient = _look(trainer, gradients)
                constants.updates.append(update)
                constants.loss.append(loss)
                constants.gradient.append(gradient)
            trainer.advance()
        measured.append(constants)
    return Smoothness(measured, training.task.name, dataset, training.every, list(training.seeds), list(DISTANCES))


def _look(trainer: Trainer, gradients: Callable[..., tuple[Any, Any]]) -> tuple[float, float]:
    batch = to_tensors(trainer.splits.train(trainer.update), trainer.backend)
    return constants_at(lambda params: gradients(params, batch), trainer.state["params"])


def constants_at(gradients: Callable[[Any], tuple[Any, Any]], params: Any,
                 distances: Sequence[float] = DISTANCES) -> tuple[float, float]:
    """The Lipschitz constants of a loss and of its gradient at `params`, along the gradient.

    Args:
        gradients: from parameters to the loss and its gradients.
        params: a tree of tensors.
        distances: how far the parameters are moved.

    Raises:
        DivergedError: the loss or the gradient is not finite, or the gradient is zero.
    """
    loss, slope = _values(gradients(params))
    length = math.sqrt(sum(float(np.vdot(g, g)) for g in slope))
    if not (math.isfinite(loss) and math.isfinite(length) and length > 0):
        raise DivergedError(f"[smoothness] expected a finite loss and gradient that is not zero; found the loss {loss} "
                            f"and a gradient of the norm {length}")
    of_loss, of_gradient = list[float](), list[float]()
    for distance in distances:
        moved = [p - g.astype(p.dtype) * np.asarray(distance / length, p.dtype)
                 for p, g in zip((leaf.numpy() for leaf in tree.leaves(params)), slope, strict=True)]
        backend = tree.leaves(params)[0].backend
        loss_there, slope_there = _values(gradients(to_tensors(tree.unflatten(params, moved), backend)))
        change = math.sqrt(sum(float(np.vdot(a - b, a - b)) for a, b in zip(slope_there, slope, strict=True)))
        of_loss.append(abs(loss_there - loss) / distance)
        of_gradient.append(change / distance)
    return max(of_loss), max(of_gradient)


def _values(result: tuple[Any, Any]) -> tuple[float, list[np.ndarray]]:
    loss, gradients = result
    return float(loss.numpy()), [gradient.numpy().astype(np.float64) for gradient in tree.leaves(gradients)]
