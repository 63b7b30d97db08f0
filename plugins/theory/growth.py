"""Longer weights learn more slowly (section 5.2.2): growth of the weights against the effective learning rate.

A normalised model does not see the length of its weights W. So the gradient is at right angles to W, every step of
gradient descent makes W longer, by |W'|^2 = |W|^2 + rate^2 |gradient|^2, and an update of a given size changes the
model by 1 / |W|^2 as much, in nats: the effective rate is rate / |W|^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from duoln import Stream, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor, value_and_grad
from duoln.plugins.theory.fisher import divergence
from duoln.plugins.theory.glm import FAMILIES, Glm, Norm, predict, predictor

SCALES = (1.0, 2.0, 4.0, 8.0)
UPDATES = 200
RATE = 0.5
_BATCH = 50
_SMALL = 1e-3
"""Length of an update that is short against every W here."""


@dataclass(frozen=True)
class SameUpdate:
    """One update of W, after W was made longer: KL in nats by that at scale 1, by model."""

    scale: float
    divergence: dict[str, float]


@dataclass(frozen=True)
class Descent:
    """Gradient descent on the weights of a logistic model, at a constant rate, on batches of its data.

    `points` holds (updates, |W|, rate / |W|^2); `along` is the greatest part of a gradient along W, by the greatest
    gradient; `squares` the relative error of |W|^2 from the sum of the squared updates.
    """

    norm: Norm
    points: list[tuple[int, float, float]]
    along: float
    squares: float


def same_updates(models: Mapping[Norm, Glm], seed: int, backend: Backend) -> list[SameUpdate]:
    """The same small random update of W at several lengths of W; logistic."""
    family = FAMILIES["logistic"]
    nats: dict[float, dict[str, float]] = {}
    for scale in SCALES:
        nats[scale] = {}
        for norm, glm in models.items():
            longer = glm._replace(weight=scale * glm.weight)
            update = Stream(seed, "growth.update").gaussian(glm.weight.shape)
            moved = longer._replace(weight=longer.weight + _SMALL * update / np.linalg.norm(update))
            nats[scale][norm] = divergence(family, predictor(longer, backend), predictor(moved, backend))
    return [SameUpdate(scale, {norm: n / nats[1.0][norm] for norm, n in by_norm.items()})
            for scale, by_norm in nats.items()]


def descend(glm: Glm, seed: int, backend: Backend, updates: int = UPDATES, rate: float = RATE) -> Descent:
    """Learn labels that a plain model draws, from weights of length 1; gain and bias stay."""
    rng = Stream(seed, "growth.descent")
    family = FAMILIES["logistic"]
    teacher = rng.gaussian(glm.weight.shape)
    labels = (rng.uniform((len(glm.x), glm.outputs)) < family.mean(glm.x @ teacher)).astype(np.float64)
    gain, bias = (Tensor(backend.asarray(a, "float64"), backend) for a in (glm.gain, glm.bias))

    def loss(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return ops.mean(ops.sum(ops.bce_with_logits(predict(glm.norm, x, weight, gain, bias), y), axis=1))

    gradient_of = value_and_grad(loss)
    weight = glm.weight / np.linalg.norm(glm.weight)
    points, along, lengths, squares = [], [], [], float(np.sum(weight**2))
    size = min(_BATCH, len(glm.x) // 2)
    for k in range(updates + 1):
        length = float(np.linalg.norm(weight))
        if k % (updates // 4) == 0:
            points.append((k, length, rate / length**2))
        if k == updates:
            break
        rows = rng.permutation(len(glm.x))[:size]
        arrays = (Tensor(backend.asarray(a, "float64"), backend) for a in (weight, glm.x[rows], labels[rows]))
        gradient = gradient_of(*arrays)[1].numpy()
        along.append(abs(np.sum(weight * gradient)) / length)
        lengths.append(np.linalg.norm(gradient))
        weight -= rate * gradient
        squares += float(np.sum((rate * gradient) ** 2))
    return Descent(glm.norm, points, float(np.max(along) / np.max(lengths)),
                   abs(float(np.sum(weight**2)) - squares) / squares)
