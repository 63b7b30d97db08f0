"""Compares the paper's geometry of normalised models (section 5.2, supplement) with exact numbers.

This module measures; `statements` says which of the paper's equations hold, and which, as printed, do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from duoln import Stream
from duoln.backends.protocol import Backend
from duoln.plugins.theory import growth
from duoln.plugins.theory.fisher import (
    covariance,
    divergence,
    fisher,
    layer_norm_jacobian,
    magnitudes,
    normalised,
    paper_fisher,
)
from duoln.plugins.theory.glm import FAMILIES, NORMS, Glm, Norm, check_exact, jacobian, predictor, random_glm
from duoln.plugins.theory.growth import Descent, SameUpdate

CORRELATION = 0.5
"""The correlation of the outputs for blocks of two outputs; for independent outputs these blocks are zero."""
STEPS = (1.0, 0.1, 0.01, 0.001)
DIRECTIONS = 5
NORMALISED: tuple[Norm, ...] = ("batch", "weight", "layer")


@dataclass(frozen=True)
class Blocks:
    """Eq. 13 (eq. 12 for the plain model) against the exact Fisher information: relative errors of its blocks.

    Frobenius norms, by that of the exact block; the block of weights against the others by the geometric mean of both.
    """

    norm: Norm
    family: str
    weights: float
    weights_largest: float
    """The largest error of an entry of the weight blocks, by the largest entry."""
    cross: float
    others: float
    """Biases and gains."""


@dataclass(frozen=True)
class Doubled:
    """The effect of doubled weights on the output and on the exact blocks; each ratio is by least squares.

    Logistic, outputs with a correlation of `CORRELATION`.
    """

    norm: Norm
    what: str
    output_change: float
    own: float
    """Block (w_1, w_1)."""
    bias: float
    gain: float
    pair: float
    """Block (w_1, w_2)."""


@dataclass(frozen=True)
class Gains:
    """A change of the gains alone: the exact coefficients of delta_g_i^2, the equation's, and their relative error."""

    equation: str
    norm: Norm
    family: str
    exact: list[float]
    paper: list[float]
    error: float
    correlated: float
    """The same for the whole matrix of gains, outputs with a correlation of `CORRELATION`."""


@dataclass(frozen=True)
class Directions:
    """Eq. 35, the plain model moved along w_i / |w_i| and w_j / |w_j|; logistic, outputs correlated.

    The right side is one term, of the pair (i, j). The left side, as printed, is the quadratic form of both changes
    together: the terms ii, ij, ji and jj.
    """

    pair: float
    """Relative error of the term (i, j) by itself, all pairs."""
    printed: float
    """Relative error of the left side as printed, i = 1 and j = 2."""


@dataclass(frozen=True)
class Step:
    """Eq. 8 for one length of a step: KL in nats and the relative error of the quadratic form, by model.

    Both the greatest of `DIRECTIONS` random directions; logistic.
    """

    length: float
    nats: dict[str, float]
    errors: dict[str, float]
    paper_layer: float
    """The relative error for layer norm if eq. 13 replaces the exact matrix."""


@dataclass(frozen=True)
class Geometry:
    """All measurements."""

    cases: int
    blocks: list[Blocks]
    shared: float
    """Relative error of layer norm's Jacobian with shared mu and sigma, `fisher.layer_norm_jacobian`."""
    doubled: list[Doubled]
    gains: list[Gains]
    directions: Directions
    steps: list[Step]
    same_update: list[SameUpdate]
    descents: list[Descent]


def examine(backend: Backend, seed: int = 0, cases: int = 500) -> Geometry:
    """Measure everything on models of three outputs that share four inputs.

    Args:
        backend: where the operators run, in float64.
        seed: of weights, data and directions.
        cases: rows of data.

    Raises:
        BackendError, UsageError: as `check_exact`.
    """
    check_exact("geometry", backend, cases)
    models = {norm: random_glm(norm, seed, cases) for norm in NORMS}
    rows = {norm: jacobian(glm, backend) for norm, glm in models.items()}
    naturals = {norm: predictor(glm, backend) for norm, glm in models.items()}
    shared = layer_norm_jacobian(models["layer"])
    return Geometry(
        cases,
        [_blocks(models[n], rows[n], naturals[n], family) for n in NORMS for family in FAMILIES],
        _relative(shared, rows["layer"]),
        [_doubled(models[n], rows[n], naturals[n], everything, backend)
         for n in NORMALISED for everything in (False, True)],
        [_gains(models[n], rows[n], naturals[n], family) for n in NORMALISED for family in FAMILIES],
        _directions(models["none"], rows["none"], naturals["none"]),
        _steps(models, rows, naturals, seed, backend),
        growth.same_updates(models, seed, backend),
        [growth.descend(models[n], seed, backend) for n in NORMS])


def _relative(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))


def _blocks(glm: Glm, rows: np.ndarray, natural: np.ndarray, name: str) -> Blocks:
    family = FAMILIES[name]
    covariances = covariance(family, natural)
    exact, paper = fisher(rows, covariances, family.dispersion), paper_fisher(glm, covariances, family.dispersion)
    weights = np.arange(len(exact)) % glm.width < glm.inputs
    weight_block, cross, rest_block = np.ix_(weights, weights), np.ix_(weights, ~weights), np.ix_(~weights, ~weights)
    own, others = np.linalg.norm(exact[weight_block]), np.linalg.norm(exact[rest_block])
    gap = exact - paper
    return Blocks(glm.norm, name, float(np.linalg.norm(gap[weight_block]) / own),
                  float(np.abs(gap[weight_block]).max() / np.abs(exact[weight_block]).max()),
                  float(np.linalg.norm(gap[cross]) / np.sqrt(own * others)),
                  float(np.linalg.norm(gap[rest_block]) / others))


def _doubled(glm: Glm, rows: np.ndarray, natural: np.ndarray, everything: bool, backend: Backend) -> Doubled:
    family = FAMILIES["logistic"]
    factors = np.full(glm.outputs, 2.0) if everything else np.where(np.arange(glm.outputs) == 0, 2.0, 1.0)
    after = glm._replace(weight=glm.weight * factors)
    longer = predictor(after, backend)
    before = fisher(rows, covariance(family, natural, CORRELATION), family.dispersion)
    behind = fisher(jacobian(after, backend), covariance(family, longer, CORRELATION), family.dispersion)
    first, second = slice(0, glm.inputs), slice(glm.width, glm.width + glm.inputs)

    def ratio(columns: slice) -> float:
        old, new = before[first, columns], behind[first, columns]
        return float(np.sum(old * new) / np.sum(old * old))

    bias, gain = (slice(k, k + 1) for k in (glm.inputs, glm.inputs + 1))
    return Doubled(glm.norm, "W" if everything else "w_1", _relative(longer, natural), ratio(first), ratio(bias),
                   ratio(gain), ratio(second))


def _gains(glm: Glm, rows: np.ndarray, natural: np.ndarray, name: str) -> Gains:
    """Eq. 32 (batch), 33 (layer) and 34 (weight norm)."""
    family = FAMILIES[name]
    at = np.arange(glm.outputs) * glm.width + glm.width - 1
    unit = np.ones_like(natural) if glm.norm == "batch" else normalised(glm)[0]  # eq. 32 has no (a - mu) / sigma

    def matrices(correlation: float) -> tuple[np.ndarray, np.ndarray]:
        covariances = covariance(family, natural, correlation)
        printed = np.einsum("nij,ni,nj->ij", covariances, unit, unit) / (len(unit) * family.dispersion**2)
        return printed, fisher(rows, covariances, family.dispersion)[np.ix_(at, at)]

    printed, exact = matrices(0.0)
    equation = {"batch": "32", "layer": "33", "weight": "34"}[glm.norm]
    return Gains(equation, glm.norm, name, np.diag(exact).tolist(), np.diag(printed).tolist(),
                 _relative(printed, exact), _relative(*matrices(CORRELATION)))


def _directions(glm: Glm, rows: np.ndarray, natural: np.ndarray) -> Directions:
    """Eq. 35."""
    family = FAMILIES["logistic"]
    covariances = covariance(family, natural, CORRELATION)
    exact = fisher(rows, covariances, family.dispersion)
    along = magnitudes(glm)
    summed = glm.x @ glm.weight / np.linalg.norm(glm.weight, axis=0)
    right = np.einsum("nij,ni,nj->ij", covariances, summed, summed) / (len(summed) * family.dispersion**2)
    both = along[0] + along[1]
    return Directions(_relative(right, along @ exact @ along.T), _relative(right[0, 1], both @ exact @ both))


def _steps(models: Mapping[Norm, Glm], rows: Mapping[Norm, np.ndarray], naturals: Mapping[Norm, np.ndarray], seed: int,
           backend: Backend) -> list[Step]:
    """Eq. 8."""
    family = FAMILIES["logistic"]
    forms = {n: fisher(rows[n], covariance(family, naturals[n]), family.dispersion) for n in models}
    printed = paper_fisher(models["layer"], covariance(family, naturals["layer"]), family.dispersion)
    lengths = []
    for length in STEPS:
        nats: dict[str, float] = {}
        errors: dict[str, float] = {}
        paper_layer: list[float] = []
        for norm, glm in models.items():
            rng = Stream(seed, "geometry.step")
            true, missed = [], []
            for _ in range(DIRECTIONS):
                change = rng.gaussian((glm.outputs * glm.width,))
                change *= length / np.linalg.norm(change)
                true.append(divergence(family, naturals[norm], predictor(glm.moved(change), backend)))
                missed.append(abs(0.5 * change @ forms[norm] @ change - true[-1]) / true[-1])
                if norm == "layer":
                    paper_layer.append(abs(0.5 * change @ printed @ change - true[-1]) / true[-1])
            nats[norm], errors[norm] = float(np.max(true)), float(np.max(missed))
        lengths.append(Step(length, nats, errors, float(np.max(paper_layer))))
    return lengths
