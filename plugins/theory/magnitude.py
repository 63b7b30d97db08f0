"""The metric along the magnitude of incoming weights when inputs and weights are scaled or shifted (section 5.2.2).

The paper: in a standard GLM the metric along the magnitude |w_i| grows with the norm of the input, while in batch and
layer norm, where the gain g_i is the magnitude, it depends only on the size of the prediction error. So learning the
magnitude is more robust to the scale of the input and of the weights.

With a_i = w_i x the metric of output i is E[Var(y_i | x) u_i^2] / phi^2, where u_i is the derivative of the natural
parameter: a_i / |w_i| along |w_i| in the plain model (eq. 35) and along the gain in weight norm (34), and
(a_i - mu_i) / sigma_i along the gain in batch and layer norm (33).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.errors import UsageError
from duoln.plugins.theory.fisher import covariance, fisher, magnitudes, normalised
from duoln.plugins.theory.glm import FAMILIES, NORMS, Glm, Norm, check_exact, jacobian, predictor, random_glm

FAMILIES_SHOWN = ("gaussian", "logistic")
"""The variance of y is the same everywhere in the first; it falls where predictions are sure in the second."""
ROBUST: tuple[Norm, ...] = ("batch", "layer")
"""The models of which the paper says that the scale of inputs and weights is not seen."""
TOLERANCE = 1e-9


class Effect(NamedTuple):
    """The metric along the magnitude of the weights after a change, by that before it."""

    change: str
    family: str
    norm: Norm
    ratio: float
    """The ratio of the sum over all outputs."""
    least: float
    greatest: float
    """The least and the greatest ratio of a single output."""
    error: float
    """Relative error of the formula at the top of this module, after the change."""


class Magnitude(NamedTuple):
    """All effects, and what they were measured with."""

    effects: list[Effect]
    cases: int
    scale: float
    shift: float

    def of(self, change: str, family: str, norm: Norm) -> Effect:
        """The effect of one change on one model."""
        return next(e for e in self.effects if (e.change, e.family, e.norm) == (change, family, norm))

    @property
    def changes(self) -> list[str]:
        """The names of the changes, in order."""
        return list(dict.fromkeys(e.change for e in self.effects))

    @property
    def holds(self) -> bool:
        """True if scales change nothing in batch and layer norm, and the formula is that of the exact matrix."""
        scaled = [e for e in self.effects if e.norm in ROBUST and "+" not in e.change]
        return (all(abs(e.ratio - 1) < TOLERANCE for e in scaled)
                and all(e.error < TOLERANCE for e in self.effects))


def changes(scale: float, shift: float) -> dict[str, Callable[[Glm], Glm]]:
    """The changes of inputs and weights, by name."""
    return {f"inputs x {scale:g}": lambda glm: glm._replace(x=scale * glm.x),
            f"inputs x {1 / scale:g}": lambda glm: glm._replace(x=glm.x / scale),
            f"inputs + {shift:g}": lambda glm: glm._replace(x=glm.x + shift),
            f"weights x {scale:g}": lambda glm: glm._replace(weight=scale * glm.weight)}


def measure(backend: Backend, seed: int = 0, cases: int = 500, scale: float = 4.0, shift: float = 3.0) -> Magnitude:
    """The exact metric before and after each change, on models of three outputs that share four inputs.

    Args:
        backend: where the operators run, in float64.
        seed: of weights and data.
        cases: rows of data.
        scale: factor of inputs and weights; inputs are divided by it, too.
        shift: what every input is moved by.

    Raises:
        BackendError: as `check_exact`.
        UsageError: as `check_exact`, or a scale or shift that changes nothing.
    """
    check_exact("magnitude", backend, cases)
    if not (np.isfinite(scale) and scale > 0 and scale != 1):
        raise UsageError(f"[magnitude] expected a finite scale above 0 other than 1, found {scale:g}")
    if not (np.isfinite(shift) and shift != 0):
        raise UsageError(f"[magnitude] expected a finite shift other than 0, found {shift:g}")
    before = {norm: random_glm(norm, seed, cases) for norm in NORMS}
    effects = []
    for norm, glm in before.items():
        old = {family: metric(glm, family, backend) for family in FAMILIES_SHOWN}
        for name, change in changes(scale, shift).items():
            after = change(glm)
            for family in FAMILIES_SHOWN:
                new, formula = metric(after, family, backend), by_formula(after, family, backend)
                ratios = new / old[family]
                effects.append(Effect(name, family, norm, float(new.sum() / old[family].sum()), float(ratios.min()),
                                      float(ratios.max()), float(np.abs(formula / new - 1).max())))
    return Magnitude(effects, cases, scale, shift)


def metric(glm: Glm, family: str, backend: Backend) -> np.ndarray:
    """The exact Fisher information along the magnitude of each output's weights: (outputs,).

    Along the gain, or in the plain model along w_i / |w_i|; from derivatives by the tape.
    """
    kind = FAMILIES[family]
    exact = fisher(jacobian(glm, backend), covariance(kind, predictor(glm, backend)), kind.dispersion)
    along = magnitudes(glm)
    array: np.ndarray = np.einsum("ip,pq,iq->i", along, exact, along)
    return array


def by_formula(glm: Glm, family: str, backend: Backend) -> np.ndarray:
    """E[Var(y_i | x) u_i^2] / phi^2 of each output, (outputs,); see the top of this module."""
    kind = FAMILIES[family]
    if glm.norm == "none":
        unit = glm.x @ (glm.weight / np.linalg.norm(glm.weight, axis=0))
    else:
        unit = normalised(glm)[0]
    variance = kind.dispersion * kind.slope(predictor(glm, backend))
    array: np.ndarray = (variance * unit**2).mean(axis=0) / kind.dispersion**2
    return array
