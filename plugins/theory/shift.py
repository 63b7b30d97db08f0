"""Covariate shift: how far the distributions of layers' inputs move between updates, with and without layer norm.

The chapter on Listen, Attend and Spell says that layer norm reduces it. Here the variants of a task are trained from
their start, and after every few updates each layer's inputs for a fixed probe batch are taken (`Task.layer_inputs`). Of
every unit this gives a mean and a standard deviation over the rows. The movement of a layer between two such times is
the mean over its units of |change of the mean| and of |change of the deviation|, both by the unit's deviation before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.data.csv_text import csv_text
from duoln.errors import UsageError
from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.runtime import to_tensors
from duoln.tasks import Task, make_config
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


def measure(task: Task, variants: Sequence[str], preset: str | None, settings: Mapping[str, Any], backend: Backend,
            seeds: Sequence[int] = (0,), updates: int = 200, every: int = 5) -> Shift:
    """Train each variant from each seed and measure the movement of its layers' inputs.

    Args:
        task: a task that has `layer_inputs`.
        variants: what is compared.
        preset: of the task.
        settings: overrides of the preset.
        backend: where it is trained.
        seeds: of weights, batches and noise.
        updates: how many of each variant.
        every: updates of an interval.

    Raises:
        UsageError: fewer updates than one interval, an unknown variant or setting, or a task without `layer_inputs`.
        DataError: the task's data are missing or damaged. DivergedError: a loss is not finite.
    """
    if not 1 <= every <= updates:
        raise UsageError(f"[shift] expected an interval of 1 to {updates} updates, all of them; found {every}")
    movements, dataset = list[Movement](), ""
    losses: dict[str, list[float]] = {variant: [] for variant in variants}
    for variant, seed in itertools.product(variants, seeds):
        cfg = make_config(task, variant, preset, {**settings, "seed": seed})
        splits = task.data(cfg)
        trainer = Trainer(task, variant, cfg, splits, backend)
        dataset, loss = splits.dataset.label, math.nan
        probe = to_tensors(splits.train(updates), backend)  # the first batch that is not trained on before the end
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
    return Shift(movements, task.name, dataset, every, list(seeds), losses)


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


def as_csv(measured: Shift) -> str:
    """A line for each variant, layer, seed and interval."""
    rows: list[Sequence[Any]] = [["variant", "layer", "seed", "step", "mean_moved", "deviation_moved"]]
    for movement in measured.movements:
        for step, mean, deviation in zip(*movement[3:], strict=True):
            rows.append([*movement[:3], step, f"{mean:.6g}", f"{deviation:.6g}"])
    return csv_text(rows)


def draw(measured: Shift, target: Path) -> Path:
    """A column for each layer: above the movement of the means, below that of the deviations, over the training; median
    and range of the seeds.

    Raises:
        UsageError: matplotlib is not installed.
    """
    layers, variants = measured.layers(), list(measured.losses)
    looks = style.looks(variants)
    with figure(target, 2, len(layers), (1.0 + 2.1 * len(layers), 4.6), top=0.9, sharex=True,
                sharey="row") as (whole, panels):
        for column, layer in enumerate(layers):
            for variant in variants:
                of_seeds = measured.of(variant, layer)
                for panel, values in zip(panels[:, column], ([m.means for m in of_seeds],
                                                             [m.deviations for m in of_seeds]), strict=True):
                    low, middle, high = np.quantile(values, (0.0, 0.5, 1.0), axis=0)
                    panel.plot(of_seeds[0].updates, middle, label=variant, linewidth=1.2, **looks[variant].line())
                    panel.fill_between(of_seeds[0].updates, low, high, color=looks[variant].colour, alpha=0.15,
                                       linewidth=0)
                    panel.set_yscale("log")
                    panel.grid(alpha=0.3)
            panels[0][column].set_title(style.wrapped(layer, 2.0), fontsize=9)
            panels[1][column].set_xlabel("updates", fontsize=8)
        panels[0][0].set_ylabel("means moved by", fontsize=8)
        panels[1][0].set_ylabel("deviations moved by", fontsize=8)
        lines, labels = panels[0][0].get_legend_handles_labels()
        whole.legend(lines, labels, loc="upper center", ncol=len(variants), fontsize=8)
    return target
