"""Table 1 (section 5.1): which changes of weights and data leave a normalised layer's output as it was.

The layer is h = tanh(gain * (a - mu) / sigma + bias) with a = W x. Its norm is one of our own operators, with the
epsilon that they have; the paper has none. Scales are positive: a negative one turns the sign of what is normalised.
Statistics of batch norm are those of the same, changed, data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from duoln import Stream, ops
from duoln.backends.protocol import Backend
from duoln.cli.rows_table import RowsTable
from duoln.plugins.theory.report import TITLES, Report, precision, relative, tensor

Norm = Literal["batch", "weight", "layer"]
NORMS: tuple[Norm, ...] = get_args(Norm)

CASES, INPUTS, UNITS = 16, 12, 8
DRAWS, EPS = 20, 1e-5
CLEAR = 0.01
"""A relative change of the output of at least this size is a clear change."""
_ROUNDINGS = 64.0
"""Roundings to allow for, in units of the dtype's: shifts make pre-activations larger than their spread."""


class Layer(NamedTuple):
    """A layer and its data, float64: x (cases, inputs), weight (inputs, units), gain and bias (units,)."""

    x: np.ndarray
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray


class Cell(NamedTuple):
    """One cell of table 1: the relative change of the output over all draws, and the paper's statement."""

    norm: Norm
    transformation: str
    expected: bool
    """True if the paper says that the output does not change."""
    least: float
    greatest: float
    tolerance: float
    """The change that epsilon and rounding may cause in an invariant output."""

    @property
    def measured(self) -> bool | None:
        """True if the output is invariant in every draw; None if only in some draws, or if its change is too small to
        decide.
        """
        if self.greatest <= self.tolerance:
            return True
        return False if self.least >= CLEAR else None

    @property
    def agrees(self) -> bool:
        return self.measured is self.expected

    def __str__(self) -> str:
        word = {True: "yes", False: "no", None: "unclear"}[self.measured]
        change = self.greatest if self.measured is not False else self.least
        return f"{word:3} {change:.1e}" + ("" if self.agrees else f"; the paper: {'yes' if self.expected else 'no'}")


def _scaled_unit(layer: Layer, scale: float, rng: Stream) -> Layer:
    weight = layer.weight.copy()
    weight[:, rng.integers(UNITS, (1,))] *= scale
    return layer._replace(weight=weight)


def _scaled_case(layer: Layer, scale: float, rng: Stream) -> Layer:
    x = layer.x.copy()
    x[rng.integers(CASES, (1,))] *= scale
    return layer._replace(x=x)


TRANSFORMATIONS: dict[str, Callable[[Layer, float, Stream], Layer]] = {
    "weight matrix re-scaling": lambda layer, scale, rng: layer._replace(weight=layer.weight * scale),
    "weight matrix re-centring":
        lambda layer, scale, rng: layer._replace(weight=layer.weight + scale * rng.gaussian((INPUTS, 1))),
    "weight vector re-scaling": _scaled_unit,
    "dataset re-scaling": lambda layer, scale, rng: layer._replace(x=layer.x * scale),
    "dataset re-centring": lambda layer, scale, rng: layer._replace(x=layer.x + scale * rng.gaussian((INPUTS,))),
    "single training case re-scaling": _scaled_case,
}
"""The columns of table 1: a layer, a positive scale and a stream of randomness -> the changed layer."""

TABLE_1: dict[Norm, tuple[bool, ...]] = {
    "batch": (True, False, True, True, True, False),
    "weight": (True, False, True, False, False, False),
    "layer": (True, True, False, True, False, True),
}
"""The paper's statement on each transformation. (The text beside it says that all three stay when the data are scaled;
the table, which says that weight norm does not, is right.)"""


def table_one(backend: Backend, seed: int = 0) -> list[Cell]:
    """Measure table 1 with our operators on a backend.

    The tolerance of an output that should stay is eps over the least variance that was divided by, and rounding.

    Args:
        backend: where the operators run: in float64 on NumPy, in float32, as networks are, elsewhere.
        seed: of models, data and transformations.
    """
    cells, rounding = [], _ROUNDINGS * float(np.finfo(precision(backend)).eps)
    for norm in NORMS:
        for (name, change), expected in zip(TRANSFORMATIONS.items(), TABLE_1[norm], strict=True):
            changes, tolerances = [], []
            for draw in range(DRAWS):
                before, scale, rng = _draw(seed, name, draw)
                after = change(before, scale, rng)
                changes.append(_change(norm, before, after, backend))
                tolerances.append(EPS / min(_least_variance(norm, before), _least_variance(norm, after)) + rounding)
            # NumPy's extremes, because Python's would ignore a NaN among the changes.
            cells.append(Cell(norm, name, expected, float(np.min(changes)), float(np.max(changes)), max(tolerances)))
    return cells


def bias_inside(backend: Backend, seed: int = 0) -> float:
    """The least change of a layer norm's output under a scaling of the data where the bias is inside the norm."""
    draws = [_draw(seed, "bias inside", draw) for draw in range(DRAWS)]
    return float(np.min([_change("bias inside", before, before._replace(x=before.x * scale), backend)
                         for before, scale, _ in draws]))


def measure(backend: Backend, seed: int = 0) -> Report:
    """Table 1, and one measurement that is not in the table."""
    cells, inside, dtype = table_one(backend, seed), bias_inside(backend, seed), precision(backend)
    agreeing = sum(cell.agrees for cell in cells)
    summary = f"{agreeing} of {len(cells)} cells of table 1 as in the paper"
    of_rows = [[cell for cell in cells if cell.transformation == name] for name in TRANSFORMATIONS]
    table = RowsTable(
        f"Table 1: does the output stay, and its relative change ({DRAWS} draws, {dtype})",
        ("", *(TITLES[n] for n in NORMS)), [(row[0].transformation, *map(str, row)) for row in of_rows],
        [k for k, row in enumerate(of_rows) if not all(cell.agrees for cell in row)], (1, 2, 3))
    return Report(summary, agreeing == len(cells), {
        "cells": [{**cell._asdict(), "measured": cell.measured} for cell in cells], "eps": EPS, "dtype": dtype,
        "draws": DRAWS, "bias_inside": inside}, table, (
        f"{summary}; eps {EPS:g}; yes: the greatest change, no: the least",
        "The text of section 5.1 says that all three stay when the dataset is re-scaled; the table, which says "
        "that weight norm does not, is right.",
        "With its bias inside the norm, layer norm does not stay either: dataset re-scaling changes its output "
        f"by {inside:.2g} or more."))


def _draw(seed: int, name: str, draw: int) -> tuple[Layer, float, Stream]:
    """A random layer with data, a scale of 1/4 to 1/2 or 2 to 4, and the stream that they came from."""
    rng = Stream(seed, f"invariance.{name}", step=draw)
    layer = Layer(rng.gaussian((CASES, INPUTS)), rng.gaussian((INPUTS, UNITS)), 0.5 + rng.uniform((UNITS,)),
                  rng.gaussian((UNITS,)))
    return layer, float(2.0 ** (rng.uniform((), 1.0, 2.0) * (1 if draw % 2 else -1))), rng


def _change(norm: Norm | Literal["bias inside"], before: Layer, after: Layer, backend: Backend) -> float:
    """The relative change of the output. "bias inside" is layer norm with the bias added before it."""
    def output(layer: Layer) -> np.ndarray:
        x, weight, gain, bias = (tensor(a, backend, precision(backend)) for a in layer)
        if norm == "weight":
            normalised = ops.linear(x, ops.weight_norm(weight, gain), bias)
        elif norm == "batch":
            normalised = ops.batch_norm(ops.matmul(x, weight), gain, bias, eps=EPS)[0]
        elif norm == "layer":
            normalised = ops.layer_norm(ops.matmul(x, weight), gain, bias, eps=EPS)
        else:
            normalised = ops.layer_norm(ops.linear(x, weight, bias), gain, eps=EPS)
        return ops.tanh(normalised).numpy().astype(np.float64)

    old = output(before)
    return relative(output(after), old)


def _least_variance(norm: Norm, layer: Layer) -> float:
    """The least variance that a norm divides by; infinite for weight norm, to which no epsilon is added."""
    if norm == "weight":
        return float("inf")
    return float(np.var(layer.x @ layer.weight, axis=0 if norm == "batch" else 1).min())
