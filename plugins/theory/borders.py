"""Units at the border of an image (section 6.7): how often they are turned on, in each layer of a trained ConvNet.

The paper explains by them why layer norm helps a ConvNet less: units whose receptive fields lie near the border are
rarely turned on, so they have other statistics than the rest of a layer, with which layer norm mixes them. A unit is on
where its layer's output is above 0. The border of a layer is the outermost row and column on each side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoln import nn, observed
from duoln.core import Tensor
from duoln.errors import UsageError
from duoln.nn import Module
from duoln.plugins.theory.trained import Training
from duoln.runtime import to_tensors
from duoln.training.trainer import Trainer

IMAGES = 200


class Rates(NamedTuple):
    """One layer of one variant, trained from one seed: the shares of units and images where a unit is on."""

    variant: str
    seed: int
    layer: str
    border: float
    inside: float


class Borders(NamedTuple):
    """The rates of all layers, variants and seeds, and what they were measured with."""

    rates: list[Rates]
    task: str
    dataset: str
    updates: int


def measure(training: Training) -> Borders:
    """Train, and measure the rates on the first `IMAGES` of the test split.

    Raises:
        UsageError, DataError: as `Training.trainers`; UsageError for a task without convolutions.
        DivergedError: a loss is not finite.
    """
    rates, dataset = list[Rates](), ""
    for trainer in training.trainers("borders"):
        for _ in range(training.updates):
            trainer.advance()
        rates += _rates(trainer)
        dataset = trainer.splits.dataset.label
    if not rates:
        raise UsageError(f"[borders] expected a task whose model has layers with convolutions, found "
                         f"{training.task.name}")
    return Borders(rates, training.task.name, dataset, training.updates)


def _rates(trainer: Trainer) -> list[Rates]:
    rates = list[Rates]()

    def tell(path: str, layer: Module, output: Tensor) -> None:
        own = layer.children().values()
        if output.ndim == 4 and any(isinstance(child, nn.Conv2d | nn.WeightNorm) for child in own):
            rates.append(Rates(trainer.variant, trainer.cfg.seed, path, *rates_of(output.numpy() > 0)))

    images = to_tensors({name: array[:IMAGES] for name, array in trainer.splits.evaluation["test"].items()},
                        trainer.backend)
    with observed(trainer.model, tell):
        trainer.task.predict(trainer.model, trainer.state["params"], images)
    return [each for each in rates if not np.isnan(each.inside)]


def rates_of(on: np.ndarray) -> tuple[float, float]:
    """The shares of a layer's values (images, height, width, channels) that are on, at the border and inside.

    NaN inside where all is border.
    """
    at_border = np.ones(on.shape[1:3], bool)
    at_border[1:-1, 1:-1] = False
    return float(on[:, at_border].mean()), float(on[:, ~at_border].mean()) if not at_border.all() else float("nan")
