"""The tables that `duoln analyze` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.ops.recurrent.variants import CELLS
from duoln.plugins.theory import stability
from duoln.plugins.theory.geometry import CORRELATION, DIRECTIONS, Geometry
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
    _show_statements("Our layers and cells against the paper's equations: relative errors", statements)
    console.put(summary)


def _show_statements(title: str, statements: Sequence[Statement]) -> None:
    _show(title, ("where", "statement", "error", ""),
          [(s.where, s.text, _error(s.error), ("holds" if s.holds else "does not hold") if s.agrees else "UNEXPECTED")
           for s in statements], [k for k, s in enumerate(statements) if not s.agrees], (0, 2, 3))


def show_geometry(report: Geometry, statements: Sequence[Statement], summary: str) -> None:
    """Every statement, then the figures on which it is based."""
    _show_statements("The paper's statements, and their relative errors", statements)
    _show(f"Eq. 13 (plain: 12) against the exact Fisher information, {report.cases} cases: relative errors of blocks",
          ("model", "family", "weights", "largest entry", "weights x others", "gains, biases"),
          [(TITLES[b.norm], b.family, *map(_error, (b.weights, b.weights_largest, b.cross, b.others)))
           for b in report.blocks])
    _show(f"Weights doubled: change of the output, and factors of exact blocks (outputs correlated by {CORRELATION:g})",
          ("model", "doubled", "output", "w1,w1", "w1,b1", "w1,g1", "w1,w2"),
          [(TITLES[d.norm], d.what, _error(d.output_change), *(f"{r:.3f}" for r in (d.own, d.bias, d.gain, d.pair)))
           for d in report.doubled])
    _show("Gains moved alone: coefficients of their squares, exact and by the paper",
          ("eq.", "model", "family", "exact", "the paper", "error", "correlated"),
          [(g.equation, TITLES[g.norm], g.family, " ".join(f"{v:.3f}" for v in g.exact),
            " ".join(f"{v:.3f}" for v in g.paper), _error(g.error), _error(g.correlated))
           for g in sorted(report.gains, key=lambda g: g.equation)])
    _show(f"Eq. 8: error of the quadratic form, the greatest of {DIRECTIONS} directions (logistic)",
          ("step", *(TITLES[n] for n in MODELS), "layer norm by eq. 13"),
          [(f"{s.length:g}", *(_error(s.errors[n]) for n in MODELS), _error(s.paper_layer)) for s in report.steps])
    _show("One small update of W, longer and longer W: KL, by that at length 1 (logistic)",
          ("length of W", *(TITLES[n] for n in MODELS)),
          [(f"{s.scale:g}", *(f"{s.divergence[n]:.4f}" for n in MODELS)) for s in report.same_update])
    _show("Gradient descent at a constant rate: |W|, and the effective rate: rate / |W|^2",
          ("updates", *(TITLES[d.norm] for d in report.descents)),
          [(str(points[0][0]), *(f"{length:.2f}  {rate:.3f}" for _, length, rate in points))
           for points in zip(*(d.points for d in report.descents), strict=True)])
    console.put(summary)


def show_stability(measured: stability.Stability, summary: str) -> None:
    """A row for each network and way of scaling, a column for each scale."""
    scales = list(dict.fromkeys(w.scale for w in measured.walks))
    rows = [(cell.upper(), TITLES[norm], scaled.replace("w_", "W_"), *(power(w.gradient[0]) for w in walks),
             _error(max(w.moved if math.isfinite(w.moved) else math.inf for w in walks)))
            for cell in CELLS for norm in stability.NORMS for scaled in stability.SCALED
            if (walks := measured.of(cell, norm, scaled))]
    _show(f"A gradient of 1 at the last of {measured.steps} steps, at the first ({measured.dtype}); "
          "change of the states",
          ("cell", "norm", "scaled", *(f"x {s:g}" for s in scales), "states"), rows, whole=range(len(scales) + 4))
    console.put(summary)
    console.put("Layer norm's LSTM and GRU normalise W_h h alone, so the scale of W_h does not change them. Its RNN "
                "(eq. 4) normalises the sum W_h h + W_x x: the scale of W_h changes it, a common scale of both does "
                f"not. Other changes come from epsilon ({measured.eps:g}) and rounding, which a network can magnify "
                "from step to step.")
