"""The metric along the magnitude of incoming weights when inputs and weights are scaled or shifted (section 5.2.2).

The paper: in a standard GLM the metric along the magnitude |w_i| grows with the norm of the input, while in batch and
layer norm, where the gain g_i is the magnitude, it depends only on the size of the prediction error. So learning the
magnitude is more robust to the scale of the input and of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.cli.rows_table import RowsTable
from duoln.plugins.theory.geometry import FAMILIES, NORMS, Exact, Glm, Norm, exact, magnitudes, random_glm
from duoln.plugins.theory.report import TITLES, Report, check_float64

CASES, SCALE, SHIFT = 500, 4.0, 3.0
SHOWN = ("gaussian", "logistic")
"""The variance of y is the same everywhere in the first; it falls where predictions are sure in the second."""
TOLERANCE = 1e-9
CHANGES: dict[str, Callable[[Glm], Glm]] = {
    f"inputs x {SCALE:g}": lambda glm: glm._replace(x=SCALE * glm.x),
    f"inputs x {1 / SCALE:g}": lambda glm: glm._replace(x=glm.x / SCALE),
    f"inputs + {SHIFT:g}": lambda glm: glm._replace(x=glm.x + SHIFT),
    f"weights x {SCALE:g}": lambda glm: glm._replace(weight=SCALE * glm.weight)}


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

    @property
    def agrees(self) -> bool:
        """False if a scale changes something in batch or layer norm."""
        stays = self.norm in ("batch", "layer") and "+" not in self.change
        return not stays or abs(self.ratio - 1) < TOLERANCE

    def __str__(self) -> str:
        text = f"x {self.ratio:.3g}"
        return text if self.greatest - self.least < 1e-6 * self.ratio else \
            f"{text} ({self.least:.2g} to {self.greatest:.2g})"


def measure(backend: Backend, seed: int = 0) -> Report:
    """The exact metric before and after each change, on models of three outputs that share four inputs.

    Args:
        backend: where the operators run, in float64.
        seed: of weights and data.

    Raises:
        BackendError: a backend without float64.
    """
    check_float64("magnitude", backend)
    effects = []
    for norm in NORMS:
        before = exact(random_glm(norm, seed, CASES), backend)
        for name, change in CHANGES.items():
            after = exact(change(before.glm), backend)
            for family in SHOWN:
                old, new = metric(before, family), metric(after, family)
                effects.append(Effect(name, family, norm, float(new.sum() / old.sum()), float((new / old).min()),
                                      float((new / old).max())))
    by = {(e.change, e.family, e.norm): e for e in effects}
    first = next(iter(CHANGES))
    plain, batch, weight, layer = (f"{by[first, 'gaussian', norm].ratio:.4g}" for norm in NORMS)
    summary = (f"{first}: the metric along |w| of a plain model x {plain}, along the gain x {weight} in weight norm, "
               f"x {batch} in batch norm, x {layer} in layer norm")
    table = RowsTable(
        f"The metric along the magnitude of incoming weights, by that before the change, {CASES} cases",
        ("change", "family", *(TITLES[norm] for norm in NORMS)),
        [(change, family, *(str(by[change, family, norm]) for norm in NORMS))
         for change in CHANGES for family in SHOWN], whole=(0, 1))
    return Report(summary, all(e.agrees for e in effects), {
        "effects": [e._asdict() for e in effects], "cases": CASES, "scale": SCALE, "shift": SHIFT}, table, (
        summary,
        "The magnitude is |w| in the plain model and the gain in the others. In brackets: the least and the "
        "greatest of the outputs, where they differ. Gaussian outputs have one variance; that of logistic ones "
        "falls where the predictions are sure, which a plain model's and weight norm's become as they grow.",
        "Layer norm does not see the scale of its inputs, but it sees their shift (table 1)."))


def metric(model: Exact, family: str) -> np.ndarray:
    """The exact Fisher information along the magnitude of each output's weights: (outputs,).

    Along the gain, or in the plain model along w_i / |w_i|; from derivatives by the tape.
    """
    along = magnitudes(model.glm)
    array: np.ndarray = np.einsum("ip,pq,iq->i", along, model.fisher(FAMILIES[family]), along)
    return array
