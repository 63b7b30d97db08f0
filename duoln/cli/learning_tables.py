"""The tables of `duoln analyze magnitude`."""

from __future__ import annotations

from duoln.cli import console
from duoln.cli.analysis_tables import TITLES
from duoln.paper.theory import magnitude
from duoln.paper.theory.glm import NORMS


def show_magnitude(measured: magnitude.Magnitude, summary: str) -> None:
    """A row for each change and family, a column for each model."""
    rows = []
    for change in measured.changes:
        for family in magnitude.FAMILIES_SHOWN:
            effects = [measured.of(change, family, norm) for norm in NORMS]
            rows.append((change, family, *map(_factor, effects)))
    console.show(console.rows_table(
        f"The metric along the magnitude of incoming weights, by that before the change, {measured.cases} cases",
        ("change", "family", *(TITLES[norm] for norm in NORMS)), rows, whole=(0, 1)), data=True)
    console.put(summary)
    console.put("The magnitude is |w| in the plain model and the gain in the others. In brackets: the least and the "
                "greatest of the outputs, where they differ. Gaussian outputs have one variance; that of logistic ones "
                "falls where the predictions are sure, which a plain model's and weight norm's become as they grow.")
    console.put("Layer norm does not see the scale of its inputs, but it sees their shift (table 1).")


def _factor(effect: magnitude.Effect) -> str:
    text = f"x {effect.factor:.3g}"
    return text if effect.greatest - effect.least < 1e-6 * effect.factor else \
        f"{text} ({effect.least:.2g} to {effect.greatest:.2g})"
