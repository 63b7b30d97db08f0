"""Covariate shift: how far the distributions of layers' inputs move between updates, with and without layer norm.

The paper's section 3 says that fixed means and variances of summed inputs reduce it; the chapter on Listen, Attend and
Spell says that layer norm has nothing to do with that. The variants of a task are trained from their start. After every
few updates each layer's inputs for a fixed probe batch are taken (`Task.layer_inputs`). Of every unit this gives a mean
and a standard deviation over the rows. The movement of a layer between two such times is the mean over its units of
|change of the mean| and of |change of the deviation|, both by the unit's deviation before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from duoln.plugins.theory.trained import Training
from duoln.runtime import to_tensors
from duoln.training.trainer import Trainer

_LEAST_DEVIATION = 1e-6
"""Units that moved less than this before are left out: any change of theirs would be a large one."""


class Movement(NamedTuple):
    """One layer of one variant over the training from one seed."""

    variant: str
    layer: str
    seed: int
    updates: list[int]
    """The updates at the end of each interval."""
    means: list[float]
    """The movement of the units' means in each interval, in standard deviations."""
    deviations: list[float]
    """The movement of their standard deviations."""


class Shift(NamedTuple):
    """The movements of all layers and variants, and what they were measured with."""

    movements: list[Movement]
    task: str
    dataset: str
    every: int
    seeds: list[int]
    losses: dict[str, list[float]]
    """The mean training loss of the last interval, of each seed, by variant."""

    def layers(self) -> list[str]:
        """The names of the layers, in order."""
        return list(dict.fromkeys(m.layer for m in self.movements))

    def of(self, variant: str, layer: str) -> list[Movement]:
        """The movements of one layer, of each seed."""
        return [m for m in self.movements if (m.variant, m.layer) == (variant, layer)]


class Distribution(NamedTuple):
    """Mean and standard deviation of every unit of a layer, over the rows of its inputs."""

    mean: np.ndarray
    deviation: np.ndarray


def measure(training: Training) -> Shift:
    """Train and measure the movement of the layers' inputs.

    Args:
        training: of a task that has `layer_inputs`.

    Raises:
        UsageError, DataError: as `Training.trainers`; UsageError for a task without `layer_inputs`.
        DivergedError: a loss is not finite.
    """
    movements, dataset, (updates, every) = list[Movement](), "", training[-2:]
    losses: dict[str, list[float]] = {variant: [] for variant in training.variants}
    for trainer in training.trainers("shift"):
        variant, seed, splits = trainer.variant, trainer.cfg.seed, trainer.splits
        dataset, loss = splits.dataset.label, math.nan
        probe = to_tensors(splits.train(updates), trainer.backend)  # the first batch that is not trained on
        before, moved = _distributions(trainer, probe), dict[str, Movement]()
        for last in range(every, updates + 1, every):
            loss = sum(trainer.advance() for _ in range(every)) / every
            after = _distributions(trainer, probe)
            for layer in before:
                movement = moved.setdefault(layer, Movement(variant, layer, seed, [], [], []))
                means, deviations = movement_of(before[layer], after[layer])
                movement.updates.append(last)
                movement.means.append(means)
                movement.deviations.append(deviations)
            before = after
        movements += moved.values()
        losses[variant].append(loss)
    return Shift(movements, training.task.name, dataset, every, list(training.seeds), losses)


def movement_of(before: Distribution, after: Distribution) -> tuple[float, float]:
    """The movements of the means and of the deviations; NaN for a layer of which no unit varies."""
    alive = before.deviation > _LEAST_DEVIATION
    if not alive.any():
        return float("nan"), float("nan")
    change = (np.abs(new - old)[alive] / before.deviation[alive] for new, old in zip(after, before, strict=True))
    means, deviations = (float(values.mean()) for values in change)
    return means, deviations


def _distributions(trainer: Trainer, probe: dict[str, Any]) -> dict[str, Distribution]:
    inputs = trainer.task.layer_inputs(trainer.model, trainer.state["params"], probe)
    return {layer: Distribution(rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64))
            for layer, rows in inputs.items()}
