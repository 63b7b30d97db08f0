"""Measurements while the variants of a task are trained from their start.

Covariate shift: how far the distributions of layers' inputs move between updates. The paper's section 3 says that fixed
means and variances of summed inputs reduce it; the chapter on Listen, Attend and Spell says that layer norm has nothing
to do with that. After every few updates each layer's inputs for a fixed probe batch are taken (`Task.layer_inputs`). Of
every unit this gives a mean and a standard deviation over the rows. The movement of a layer between two such times is
the mean over its units of |change of the mean| and of |change of the deviation|, both by the unit's deviation before.

Smoothness: the chapter says that normalisation lowers the Lipschitz constant of the loss. Measured like Santurkar et
al. 2018 (How does batch normalization help optimization?), who have the gradient's, too: before every few updates the
parameters w are moved against the gradient g of the batch that comes next, by some distances d in turn. The constants
at w along g are the greatest |L(w) - L(w')| / d and |g(w) - g(w')| / d, where w' = w - d g / |g| and norms are of all
parameters together.

Borders: how often units at the border of an image are turned on, in each layer of a ConvNet (section 6.7). The paper
explains by them why layer norm helps a ConvNet less: units whose receptive fields lie near the border are rarely turned
on, so they have other statistics than the rest of a layer, with which layer norm mixes them. A unit is on where its
layer's output is above 0. The border of a layer is the outermost row and column on each side.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln import nn, observed, tree
from duoln.backends.protocol import Backend
from duoln.cli.rows_table import RowsTable
from duoln.core import Tensor, compile
from duoln.errors import DivergedError, UsageError
from duoln.plugins.theory.report import Report
from duoln.runtime import to_tensors
from duoln.tasks import Task, make_config
from duoln.training.train_step import make_gradients
from duoln.training.trainer import Trainer

Row = dict[str, Any]
Rows = list[Row]
"""The measurements, each of one variant from one seed, and mostly of one layer."""


class Training(NamedTuple):
    """Variants of a task, each of which is trained from each seed."""

    task: Task
    variants: Sequence[str]
    preset: str | None
    settings: Mapping[str, Any]
    """Overrides of the preset."""
    backend: Backend
    seeds: Sequence[int]
    """The seeds of weights, batches and noise."""
    updates: int
    """The number of updates of each variant."""
    every: int
    """The updates of an interval."""

    def trainers(self, measure: str) -> Iterator[Trainer]:
        """A trainer at its start for each variant and seed.

        Args:
            measure: the name in errors.

        Raises:
            UsageError: fewer updates than one interval, or an unknown variant or setting.
            DataError: the task's data are missing or damaged.
        """
        if not 1 <= self.every <= self.updates:
            raise UsageError(f"[{measure}] expected an interval of 1 to {self.updates} updates, all of them; "
                             f"found {self.every}")
        for variant, seed in itertools.product(self.variants, self.seeds):
            cfg = make_config(self.task, variant, self.preset, {**self.settings, "seed": seed})
            yield Trainer(self.task, variant, cfg, self.task.data(cfg), self.backend)

    def report(self, dataset: str, summary: str, table: RowsTable, rows: Mapping[str, Rows], **facts: Any) -> Report:
        """A report of rows, which stand under their name."""
        summary = f"{self.task.name}, {dataset}: {summary}"
        return Report(summary, None, {**rows, "task": self.task.name, "dataset": dataset, **facts}, table, [summary])

    def several(self, words: str) -> str:
        """The end of a title: words on the seeds, if they are several."""
        return f"; {words} of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""


def _by_layer(rows: Rows, variants: Iterable[str], figures: Callable[[Row], tuple[float, float]],
              form: str) -> list[tuple[str, ...]]:
    """The cells of each layer: for each variant the medians of two figures over its seeds."""
    return [(layer, *(" / ".join(format(statistics.median(of_seeds), form) for of_seeds in zip(*(
        figures(row) for row in rows if (row["variant"], row["layer"]) == (variant, layer)), strict=True))
        for variant in variants)) for layer in dict.fromkeys(row["layer"] for row in rows)]


# Shift ------------------------------------------------------------------------------------------------------

_LEAST_DEVIATION = 1e-6
"""Units that moved less than this before are left out: any change of theirs would be a large one."""


def shift(training: Training) -> Report:
    """The movements of the units' means and of their deviations in each interval, in standard deviations.

    Args:
        training: of a task that has `layer_inputs`.

    Raises:
        UsageError, DataError: as `Training.trainers`; UsageError for a task without `layer_inputs`.
        DivergedError: a loss is not finite.
    """
    movements, dataset, (updates, every) = Rows(), "", training[-2:]
    losses: dict[str, list[float]] = {variant: [] for variant in training.variants}
    for trainer in training.trainers("shift"):
        variant, seed, splits = trainer.variant, trainer.cfg.seed, trainer.splits
        dataset, loss = splits.dataset.label, math.nan
        probe = to_tensors(splits.train(updates), trainer.backend)  # the first batch that is not trained on
        before, moved = _distributions(trainer, probe), dict[str, Row]()
        for last in range(every, updates + 1, every):
            loss = sum(trainer.advance() for _ in range(every)) / every
            after = _distributions(trainer, probe)
            for layer in before:
                row = moved.setdefault(layer, {"variant": variant, "layer": layer, "seed": seed, "updates": [],
                                               "means": [], "deviations": []})
                for key, value in zip(("updates", "means", "deviations"),
                                      (last, *movement_of(before[layer], after[layer])), strict=True):
                    row[key].append(value)
            before = after
        movements += moved.values()
        losses[variant].append(loss)
    parts = []
    for variant in losses:
        means, deviations = (statistics.median(value for row in movements if row["variant"] == variant
                                               for value in row[kind]) for kind in ("means", "deviations"))
        parts.append(f"{means:.3f} and {deviations:.3f} ({variant})")
    cells = _by_layer(movements, losses, lambda row: (statistics.fmean(row["means"]),
                                                      statistics.fmean(row["deviations"])), ".3f")
    cells.append(("loss at the end", *(f"{statistics.median(of_seeds):.3g}" for of_seeds in losses.values())))
    table = RowsTable(f"Inputs of layers: means / deviations of units moved in {every} updates, in standard deviations"
                      f"{training.several('median')}", ("layer", *losses), cells, whole=(0,))
    return training.report(
        dataset, f"median of all layers, seeds and intervals of {every} updates, by which the means and deviations of "
        f"units move: {', '.join(parts)}", table, {"movements": movements}, every=every, seeds=list(training.seeds),
        losses=losses)


def movement_of(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """The movements of the means and of the deviations of units, from both before and after.

    NaN for a layer of which no unit varies.
    """
    alive = before[1] > _LEAST_DEVIATION
    if not alive.any():
        return float("nan"), float("nan")
    change = (np.abs(new - old)[alive] / before[1][alive] for new, old in zip(after, before, strict=True))
    means, deviations = (float(values.mean()) for values in change)
    return means, deviations


def _distributions(trainer: Trainer, probe: dict[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of every unit of each layer, over the rows of its inputs."""
    inputs = trainer.task.layer_inputs(trainer.model, trainer.state["params"], probe)
    return {layer: (rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64))
            for layer, rows in inputs.items()}


# Smoothness -------------------------------------------------------------------------------------------------

DISTANCES = (0.1, 0.3, 1.0)
"""An update of `las`, preset `small`, moves its 290,000 parameters by 0.06 to 1.6, 0.27 in the median."""


def smoothness(training: Training) -> Report:
    """The Lipschitz constants of the loss, in nats a unit of distance, and of the gradient, before some updates.

    Raises:
        UsageError, DataError: as `Training.trainers`. DivergedError: a loss or a gradient is not finite.
    """
    measured, dataset, kinds = Rows(), "", ("loss", "gradient")
    for trainer in training.trainers("smoothness"):
        dataset = trainer.splits.dataset.label
        gradients = compile(make_gradients(trainer.task, trainer.model))
        row: Row = {"variant": trainer.variant, "seed": trainer.cfg.seed, "updates": [], "loss": [], "gradient": []}
        for update in range(training.updates):
            if update % training.every == 0:
                batch = to_tensors(trainer.splits.train(update), trainer.backend)
                looks = constants_at(partial(gradients, batch=batch), trainer.state["params"])
                for key, value in zip(("updates", *kinds), (update, *looks), strict=True):
                    row[key].append(value)
            trainer.advance()
        measured.append(row)
    parts, cells = [], []
    for variant in training.variants:
        of_seeds = [row for row in measured if row["variant"] == variant]
        loss, gradient = (statistics.geometric_mean(value for row in of_seeds for value in row[kind]) for kind in kinds)
        parts.append(f"{loss:.3g} and {gradient:.3g} ({variant})")
        cells.append((variant, *(_range([statistics.geometric_mean(row[kind]) for row in of_seeds]) for kind in kinds)))
    table = RowsTable("Lipschitz constants along the gradient, geometric mean over the training"
                      f"{training.several('median and range')}", ("variant", "of the loss", "of the gradient"), cells,
                      whole=(0,))
    return training.report(
        dataset, "constants of the loss and of its gradient, geometric mean of all looks and seeds: "
        f"{', '.join(parts)}", table, {"constants": measured}, every=training.every, seeds=list(training.seeds),
        distances=list(DISTANCES))


def _range(values: Sequence[float]) -> str:
    text = f"{statistics.median(values):.3g}"
    return text if len(values) == 1 else f"{text} ({min(values):.3g} to {max(values):.3g})"


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
    def values(at: Any) -> tuple[float, list[np.ndarray]]:
        loss, of_leaves = gradients(at)
        return float(loss.numpy()), [gradient.numpy().astype(np.float64) for gradient in tree.leaves(of_leaves)]

    loss, slope = values(params)
    length = math.sqrt(sum(float(np.vdot(g, g)) for g in slope))
    if not (math.isfinite(loss) and math.isfinite(length) and length > 0):
        raise DivergedError(f"[smoothness] expected a finite loss and gradient that is not zero; found the loss {loss} "
                            f"and a gradient of the norm {length}")
    leaves, of_loss, of_gradient = tree.leaves(params), list[float](), list[float]()
    for distance in distances:
        moved = [p - g.astype(p.dtype) * np.asarray(distance / length, p.dtype)
                 for p, g in zip((leaf.numpy() for leaf in leaves), slope, strict=True)]
        loss_after, slope_after = values(to_tensors(tree.unflatten(params, moved), leaves[0].backend))
        change = math.sqrt(sum(float(np.vdot(a - b, a - b)) for a, b in zip(slope_after, slope, strict=True)))
        of_loss.append(abs(loss_after - loss) / distance)
        of_gradient.append(change / distance)
    return max(of_loss), max(of_gradient)


# Borders ----------------------------------------------------------------------------------------------------

IMAGES = 200


def borders(training: Training) -> Report:
    """The shares of units and of the first `IMAGES` of the test split where a unit is on, after the training.

    Raises:
        UsageError, DataError: as `Training.trainers`; UsageError for a task without convolutions.
        DivergedError: a loss is not finite.
    """
    rates, dataset = Rows(), ""
    for trainer in training.trainers("borders"):
        for _ in range(training.updates):
            trainer.advance()
        rates += _rates(trainer)
        dataset = trainer.splits.dataset.label
    if not rates:
        raise UsageError(f"[borders] expected a task whose model has layers with convolutions, found "
                         f"{training.task.name}")
    below = sum(row["border"] < row["inside"] for row in rates)
    cells = _by_layer(rates, training.variants, lambda row: (row["border"], row["inside"]), ".0%")
    table = RowsTable(f"Units that are on after {training.updates} updates, at the border / inside; median of the "
                      "seeds", ("layer", *training.variants), cells, whole=(0,))
    return training.report(
        dataset, f"units at the border are on less often in {below} of {len(rates)} layers of all variants and seeds",
        table, {"rates": rates}, updates=training.updates)


def _rates(trainer: Trainer) -> Rows:
    rates = Rows()

    def tell(path: str, layer: nn.Module, output: Tensor) -> None:
        own = layer.children().values()
        if output.ndim == 4 and any(isinstance(child, nn.Conv2d | nn.WeightNorm) for child in own):
            border, inside = rates_of(output.numpy() > 0)
            rates.append({"variant": trainer.variant, "seed": trainer.cfg.seed, "layer": path, "border": border,
                          "inside": inside})

    images = to_tensors({name: array[:IMAGES] for name, array in trainer.splits.evaluation["test"].items()},
                        trainer.backend)
    with observed(trainer.model, tell):
        trainer.task.predict(trainer.model, trainer.state["params"], images)
    return [row for row in rates if not np.isnan(row["inside"])]


def rates_of(on: np.ndarray) -> tuple[float, float]:
    """The shares of a layer's values (images, height, width, channels) that are on, at the border and inside.

    NaN inside where all is border.
    """
    at_border = np.ones(on.shape[1:3], bool)
    at_border[1:-1, 1:-1] = False
    return float(on[:, at_border].mean()), float(on[:, ~at_border].mean()) if not at_border.all() else float("nan")
