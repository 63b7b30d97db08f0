"""The tables of `duoln analyze magnitude`, `duoln analyze shift` and `duoln analyze smoothness`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.plugins.theory import magnitude, shift, smoothness
from duoln.plugins.theory.glm import NORMS
from duoln.plugins.theory.tables import TITLES


def show_magnitude(measured: magnitude.Magnitude, summary: str) -> None:
    """A row for each change and family, a column for each model."""
    rows = []
    for change in measured.changes:
        for family in magnitude.FAMILIES_SHOWN:
            effects = [measured.of(change, family, norm) for norm in NORMS]
            rows.append((change, family, *map(_ratio, effects)))
    console.show(RowsTable(
        f"The metric along the magnitude of incoming weights, by that before the change, {measured.cases} cases",
        ("change", "family", *(TITLES[norm] for norm in NORMS)), rows, whole=(0, 1)), data=True)
    console.put(summary)
    console.put("The magnitude is |w| in the plain model and the gain in the others. In brackets: the least and the "
                "greatest of the outputs, where they differ. Gaussian outputs have one variance; that of logistic ones "
                "falls where the predictions are sure, which a plain model's and weight norm's become as they grow.")
    console.put("Layer norm does not see the scale of its inputs, but it sees their shift (table 1).")


def _ratio(effect: magnitude.Effect) -> str:
    text = f"x {effect.ratio:.3g}"
    return text if effect.greatest - effect.least < 1e-6 * effect.ratio else \
        f"{text} ({effect.least:.2g} to {effect.greatest:.2g})"


def show_shift(measured: shift.Shift, summary: str) -> None:
    """A row for each layer, a column for each variant."""
    variants = list(measured.losses)
    rows = [(layer, *(_moved(measured.of(variant, layer)) for variant in variants)) for layer in measured.layers()]
    rows.append(("loss at the end", *(f"{statistics.median(losses):.3g}" for losses in measured.losses.values())))
    count = len(measured.seeds)
    console.show(RowsTable(
        f"Inputs of layers: means / deviations of units moved in {measured.every} updates, in standard deviations"
        + (f"; median of {count} seeds" if count > 1 else ""),
        ("layer", *variants), rows, whole=(0,)), data=True)
    console.put(summary)


def shift_summary(measured: shift.Shift) -> str:
    """The median movement of each variant over all its layers, in words."""
    parts = []
    for variant in measured.losses:
        own = [m for m in measured.movements if m.variant == variant]
        means = statistics.median(value for movement in own for value in movement.means)
        deviations = statistics.median(value for movement in own for value in movement.deviations)
        parts.append(f"{means:.3f} and {deviations:.3f} ({variant})")
    return ", ".join(parts)


def _moved(of_seeds: Sequence[shift.Movement]) -> str:
    means, deviations = (statistics.median(map(statistics.fmean, of_kind)) for of_kind in (
        [m.means for m in of_seeds], [m.deviations for m in of_seeds]))
    return f"{means:.3f} / {deviations:.3f}"


def show_smoothness(measured: smoothness.Smoothness, summary: str) -> None:
    """A row for each variant: its constants in the median seed, and their range."""
    rows = []
    for variant in dict.fromkeys(c.variant for c in measured.constants):
        of_seeds = measured.of(variant)
        rows.append((variant, *(_range([statistics.geometric_mean(getattr(c, kind)) for c in of_seeds])
                                for kind in ("loss", "gradient"))))
    count = len(measured.seeds)
    console.show(RowsTable(
        "Lipschitz constants along the gradient, geometric mean over the training"
        + (f"; median and range of {count} seeds" if count > 1 else ""),
        ("variant", "of the loss", "of the gradient"), rows, whole=(0,)), data=True)
    console.put(summary)


def smoothness_summary(measured: smoothness.Smoothness) -> str:
    """The constants of each variant, in words."""
    parts = []
    for variant in dict.fromkeys(c.variant for c in measured.constants):
        loss, gradient = (statistics.geometric_mean(value for c in measured.of(variant) for value in getattr(c, kind))
                          for kind in ("loss", "gradient"))
        parts.append(f"{loss:.3g} and {gradient:.3g} ({variant})")
    return ", ".join(parts)


def _range(values: Sequence[float]) -> str:
    text = f"{statistics.median(values):.3g}"
    return text if len(values) == 1 else f"{text} ({min(values):.3g} to {max(values):.3g})"
