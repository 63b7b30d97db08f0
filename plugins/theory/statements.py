"""The paper's statements on geometry (section 5.2, supplement), and whether the measurements confirm them.

Some equations are exact, and some are not as they are printed. Both kinds are checked, so that an error of the paper
and an error of ours are noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from duoln.plugins.theory.geometry import Geometry

EXACT = 1e-9
"""A relative error of at most this size is rounding."""
SHORT = 0.3
"""Largest allowed ratio of the errors of step/10 and step in eq. 8; a third-order remainder gives 0.1."""
WRONG = 0.01
"""A relative error of at least this size is more than rounding."""


class Statement(NamedTuple):
    """A statement, whether it is known to hold, and the relative error that was measured."""

    where: str
    text: str
    holds: bool
    error: float
    limit: float = EXACT

    @property
    def agrees(self) -> bool:
        """True if the measurement confirms it."""
        return self.error <= self.limit if self.holds else self.error >= WRONG


def statements(measured: Geometry) -> list[Statement]:
    """Every statement, in the order of the paper's equations."""
    return [*_curvature(measured), *_blocks(measured), *_lengths(measured), *_gains(measured)]


def _most(errors: Iterable[float]) -> float:
    """The greatest value, or NaN if there is one; Python's `max` could ignore a NaN."""
    return float(np.max(list(errors)))


def _least(errors: Iterable[float]) -> float:
    return float(np.min(list(errors)))


def _curvature(measured: Geometry) -> Iterable[Statement]:
    before, last = measured.steps[-2:]
    yield Statement("eq. 8", "KL is the quadratic form for short steps: a tenth of a step has this share of its error",
                    True, _most(error / before.errors[norm] for norm, error in last.errors.items()), SHORT)
    yield Statement("eq. 8", f"the same with eq. 13 for layer norm: the error at {last.length:g}", False,
                    last.paper_layer)


def _blocks(measured: Geometry) -> Iterable[Statement]:
    def worst(norm: str) -> float:
        return _most(e for b in measured.blocks if b.norm == norm for e in (b.weights, b.cross, b.others))

    layer = [b for b in measured.blocks if b.norm == "layer"]
    yield Statement("eq. 12", "plain model, all blocks", True, worst("none"))
    yield Statement("eq. 13", "batch norm, all blocks", True, worst("batch"))
    yield Statement("eq. 13", "weight norm, all blocks", True, worst("weight"))
    yield Statement("eq. 13", "layer norm, blocks of gains and biases", True, _most(b.others for b in layer))
    yield Statement("eq. 13", "layer norm, blocks of weights: outputs share mu and sigma, so w_i moves them all", False,
                    _least(b.weights for b in layer))
    yield Statement("eq. 13", "layer norm, blocks of weights with gains or biases", False,
                    _least(b.cross for b in layer))
    yield Statement("instead", "layer norm: d a_k / d w_i = g_k/sigma x ([k=i] - 1/H - u_k u_i/H), u = (a - mu)/sigma",
                    True, measured.shared)


def _lengths(measured: Geometry) -> Iterable[Statement]:
    by = {(d.norm, d.what): d for d in measured.doubled}
    batch, weight = by["batch", "w_1"], by["weight", "w_1"]
    one, whole = by["layer", "w_1"], by["layer", "W"]
    yield Statement("5.2.2", "batch and weight norm: |w_i| doubled, the curvature along w_i halves", False,
                    _least(abs(d.own - 0.5) / 0.5 for d in (batch, weight)))
    yield Statement("instead", "it falls to a quarter", True, _most(abs(d.own - 0.25) / 0.25 for d in (batch, weight)))
    yield Statement("5.2.2", "what halves are the blocks of w_i with b_i, g_i and w_j", True,
                    _most(abs(r - 0.5) / 0.5 for d in (batch, weight) for r in (d.bias, d.gain, d.pair)))
    yield Statement("5.2.2", "layer norm: |w_i| doubled, the output stays", False, one.output_change)
    yield Statement("instead", "the whole W doubled: it stays, and all blocks of weights fall to a quarter", True,
                    _most((whole.output_change, abs(whole.own - 0.25) / 0.25, abs(whole.pair - 0.25) / 0.25)))
    yield Statement("5.2.2", "normalised models: the gradient is at right angles to W", True,
                    _most(d.along for d in measured.descents if d.norm != "none"))
    yield Statement("5.2.2", "and |W|^2 grows by the squares of the updates", True,
                    _most(d.squares for d in measured.descents if d.norm != "none"))


def _gains(measured: Geometry) -> Iterable[Statement]:
    by = {(g.norm, g.family): g for g in measured.gains}
    logistic, gaussian = by["batch", "logistic"], by["batch", "gaussian"]
    yield Statement("eq. 32", "batch norm's gains, Cov[y|x] varies with x (logistic)", False, logistic.error)
    yield Statement("eq. 32", "the same, Cov[y|x] constant (Gaussian), independent outputs", True, gaussian.error)
    yield Statement("eq. 32", "the same, correlated outputs", False, gaussian.correlated)
    for equation, norm in (("33", "layer"), ("34", "weight")):
        yield Statement(f"eq. {equation}", f"{norm} norm's gains", True,
                        _most(e for g in measured.gains if g.norm == norm for e in (g.error, g.correlated)))
    yield Statement("eq. 35", "plain model along w_i and w_j: the term (i, j)", True, measured.directions.pair)
    yield Statement("eq. 35", "the left side as printed, which is four terms", False, measured.directions.printed)
