"""The tables that `duoln analyze` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.plugins.theory import borders, magnitude, shift, smoothness, stability
from duoln.plugins.theory.geometry import Geometry
from duoln.plugins.theory.glm import NORMS as MODELS
from duoln.plugins.theory.invariance import NORMS, TRANSFORMATIONS, Cell, Invariance
from duoln.plugins.theory.statements import Statement

TITLES = {"batch": "batch norm", "weight": "weight norm", "layer": "layer norm", "none": "plain"}
_PERCENT = 0.005
"""Errors of at least this size are shown in percent, smaller ones in powers of ten."""


def _show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], bad: Sequence[int] = (),
          whole: Sequence[int] = ()) -> None:
    console.show(RowsTable(title, headings, rows, bad, whole), data=True)


def _error(value: float) -> str:
    if not math.isfinite(value) or 0 < value < _PERCENT:
        return power(value)
    return f"{value:.0%}" if value else "0"


def power(value: float) -> str:
    """A value as text in powers of ten."""
    return f"{value:.0e}" if math.isfinite(value) else "overflow"


def show_invariance(table: Invariance, summary: str) -> None:
    """Table 1 with the change of the output in each cell."""
    by = {(c.norm, c.transformation): c for c in table.cells}
    _show(f"Table 1: does the output stay, and its relative change ({table.draws} draws, {table.dtype})",
          ("", *(TITLES[n] for n in NORMS)), [(name, *(_cell(by[norm, name]) for norm in NORMS))
                                               for name in TRANSFORMATIONS],
          [k for k, name in enumerate(TRANSFORMATIONS) if not all(by[norm, name].agrees for norm in NORMS)], (1, 2, 3))
    console.put(f"{summary}; eps {table.eps:g}; yes: the greatest change, no: the least")
    console.put("The text of section 5.1 says that all three stay when the dataset is re-scaled; the table, which says "
                "that weight norm does not, is right.")
    console.put("With its bias inside the norm, layer norm does not stay either: dataset re-scaling changes its output "
                f"by {table.bias_inside:.2g} or more.")


def _cell(cell: Cell) -> str:
    word = {True: "yes", False: "no", None: "unclear"}[cell.measured]
    change = cell.greatest if cell.measured is not False else cell.least
    return f"{word:3} {change:.1e}" + ("" if cell.agrees else f"; the paper: {'yes' if cell.expected else 'no'}")


def show_equations(statements: Sequence[Statement], summary: str) -> None:
    """Every layer and cell."""
    _show_statements("Our layers and cells against the paper's equations and text: relative errors", statements)
    console.put(summary)


def _show_statements(title: str, statements: Sequence[Statement]) -> None:
    _show(title, ("where", "statement", "error", ""),
          [(s.where, s.text, _error(s.error), ("holds" if s.holds else "does not hold") if s.agrees else "UNEXPECTED")
           for s in statements], [k for k, s in enumerate(statements) if not s.agrees], (0, 2, 3))


def show_geometry(report: Geometry, statements: Sequence[Statement], summary: str) -> None:
    """Every statement; the figures on which it is based are in `--json`."""
    _show_statements("The paper's statements, and their relative errors", statements)
    console.put(summary)


def show_stability(measured: stability.Stability, summary: str) -> None:
    """A row for each network and way of scaling, a column for each scale."""
    scales = list(dict.fromkeys(w.scale for w in measured.walks))
    rows = [(cell.upper(), TITLES[norm], scaled.replace("w_", "W_"), *(power(w.gradient[0]) for w in walks),
             _error(max(w.moved if math.isfinite(w.moved) else math.inf for w in walks)))
            for cell in stability.CELLS for norm in stability.NORMS for scaled in stability.SCALED
            if (walks := measured.of(cell, norm, scaled))]
    _show(f"A gradient of 1 at the last of {measured.steps} steps, at the first ({measured.dtype}); "
          "change of the states",
          ("cell", "norm", "scaled", *(f"x {s:g}" for s in scales), "states"), rows, whole=range(len(scales) + 4))
    console.put(summary)
    console.put("Layer norm's LSTM and GRU normalise W_h h alone, so the scale of W_h does not change them. Its RNN "
                "(eq. 4) normalises the sum W_h h + W_x x: the scale of W_h changes it, a common scale of both does "
                f"not. Other changes come from epsilon ({measured.eps:g}) and rounding, which a network can magnify "
                "from step to step.")


def show_magnitude(measured: magnitude.Magnitude, summary: str) -> None:
    """A row for each change and family, a column for each model."""
    rows = []
    for change in measured.changes:
        for family in magnitude.FAMILIES_SHOWN:
            effects = [measured.of(change, family, norm) for norm in MODELS]
            rows.append((change, family, *map(_ratio, effects)))
    console.show(RowsTable(
        f"The metric along the magnitude of incoming weights, by that before the change, {measured.cases} cases",
        ("change", "family", *(TITLES[norm] for norm in MODELS)), rows, whole=(0, 1)), data=True)
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
    return (f"median of all layers, seeds and intervals of {measured.every} updates, by which the means and deviations "
            f"of units move: {', '.join(parts)}")


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
    return ("constants of the loss and of its gradient, geometric mean of all looks and seeds: "
            f"{', '.join(parts)}")


def _range(values: Sequence[float]) -> str:
    text = f"{statistics.median(values):.3g}"
    return text if len(values) == 1 else f"{text} ({min(values):.3g} to {max(values):.3g})"


def borders_summary(measured: borders.Borders) -> str:
    """In how many layers units at the border are on less often, in words."""
    below = sum(r.border < r.inside for r in measured.rates)
    return f"units at the border are on less often in {below} of {len(measured.rates)} layers of all variants and seeds"


def show_borders(measured: borders.Borders, summary: str) -> None:
    """A row for each layer, a column for each variant."""
    variants, layers = (list(dict.fromkeys(names)) for names in (
        [r.variant for r in measured.rates], [r.layer for r in measured.rates]))
    rows = [(layer, *(" / ".join(f"{statistics.median(share):.0%}" for share in zip(*(
        (r.border, r.inside) for r in measured.rates if (r.variant, r.layer) == (variant, layer)), strict=True))
        for variant in variants)) for layer in layers]
    console.show(RowsTable(f"Units that are on after {measured.updates} updates, at the border / inside; median of the "
                           "seeds", ("layer", *variants), rows, whole=(0,)), data=True)
    console.put(summary)
