"""One step of an LSTM after its products, on NumPy: for models whose next input depends on the last output.

Saved per row: what the gradient reads, so that nothing is computed twice: both normalised sides and the gates 4 H
each, the normalised cell, its tanh and the cell before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lstm.gates import NORMED_SIDES, CellNorm, make_terms, split_gates
from duoln.kernels.recurrent import shared as recurrent
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")


class _Side(NamedTuple):
    """A normalised side (B, 4H) and one over its deviation (B, 1)."""

    normal: Array
    factor: Array


class _Saved(NamedTuple):
    norm: str
    norms: dict[str, Array]
    sides: tuple[_Side, _Side] | None
    gates: Array
    c: Array
    cell_norm: CellNorm | None
    cell_factor: Array | None
    shown: Array


def _normalised(side: Array, eps: float, more: Array | None = None) -> _Side:
    normal = host.empty_like(side)
    np.subtract(side, side.mean(axis=1, keepdims=True), normal)
    if more is not None:
        np.add(normal, more, normal)
    return _Side(normal, recurrent.scale_rows(normal, eps))


def _forward(be: Backend, side: Array, product: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
             eps: float, eps_place: str) -> tuple[tuple[Array, Array], _Saved]:
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    terms = make_terms(norms, bias, norm)
    z, sides = host.empty_like(side), None
    if norm in NORMED_SIDES:
        inside = bias - bias.mean() if norm == "layer-theano" else None
        sides = _normalised(side, eps, inside), _normalised(product, eps)
        recurrent.both_sides(sides[0].normal, sides[1].normal, terms, z, host.empty_like(side))
    else:
        np.add(side, product, z)
        np.multiply(z, terms.gain_x, z)
        np.add(z, terms.biases, z)
    recurrent.finish_gates(z, 3 * c.shape[1])
    forget, into, out, candidate = split_gates(z)
    cell, h, shown = into * candidate, host.empty_like(c), host.empty_like(c)
    np.multiply(forget, c, h)
    np.add(cell, h, cell)
    cell_norm, factor = None, None
    if "gain_c" in norms:
        cell_norm = CellNorm(norms, eps, c)
        factor = cell_norm(cell, shown)
        np.tanh(shown, shown)
    else:
        np.tanh(cell, shown)
    np.multiply(out, shown, h)
    return (h, cell), _Saved(norm, norms, sides, z, c, cell_norm, factor, shown)


def _through(g: Array, side: _Side, gain: Array) -> Array:
    """The gradient before a side's norm, from the one after it."""
    found = g * gain
    np.subtract(found, found.mean(axis=1, keepdims=True), found)
    recurrent.scale_rows_gradient(found, side.normal, side.factor, host.empty_like(found))
    return found


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    d_h, d_c = gouts
    hidden = saved.c.shape[1]
    forget, into, out, candidate = split_gates(saved.gates)
    found: dict[str, Array] = {}
    dz = host.empty_like(saved.gates)
    d_forget, d_into, d_out, d_candidate = split_gates(dz)
    if d_h is None:
        of_cell = np.zeros_like(saved.c)
        d_out[:] = 0
        found |= {name: np.zeros_like(a) for name, a in saved.norms.items() if name.endswith("_c")}
    else:
        np.multiply(d_h, saved.shown, d_out)
        of_cell = saved.shown * saved.shown
        np.subtract(1.0, of_cell, of_cell)
        np.multiply(of_cell, d_h, of_cell)
        np.multiply(of_cell, out, of_cell)
        if saved.cell_norm is not None and saved.cell_factor is not None:
            found["gain_c"], found["bias_c"] = saved.cell_norm.parameters(of_cell)
            saved.cell_norm.input(of_cell, saved.cell_factor, host.empty_like(of_cell))
    if d_c is not None:
        np.add(of_cell, d_c, of_cell)
    np.multiply(of_cell, saved.c, d_forget)
    np.multiply(of_cell, candidate, d_into)
    np.multiply(of_cell, into, d_candidate)
    np.multiply(of_cell, forget, of_cell)
    slopes = host.empty_like(dz)
    recurrent.slopes(saved.gates, 3 * hidden, slopes)
    np.multiply(dz, slopes, dz)
    d_bias = recurrent.column_sums(dz)
    d_side = d_product = dz
    if saved.sides is not None:
        for name, side in zip(("x", "h"), saved.sides, strict=True):
            np.multiply(dz, side.normal, slopes)
            found[f"gain_{name}"], found[f"bias_{name}"] = recurrent.column_sums(slopes), d_bias
        d_side, d_product = (_through(dz, side, saved.norms[f"gain_{name}"])
                             for name, side in zip(("x", "h"), saved.sides, strict=True))
        if saved.norm == "layer-theano":  # the bias is inside the input's norm, too
            d_bias = d_bias + recurrent.column_sums(d_side)
    return [d_side, d_product, of_cell, d_bias, *(found[name] for name in saved.norms)]


def _supports(be: Backend, side: Array, product: Array, c: Array, *arrays: Array, norm: str, eps_place: str,
              **others: Any) -> str | None:
    if norm not in _VARIANTS:
        return f"norm '{norm}' has no fused rule"
    if eps_place != "inside":
        return "epsilon is outside the root"
    return None if side.size else "there are no values"


def step_rule() -> Rule:
    """The rule of `lstm_cell`."""
    return Rule("fused step", _forward, _vjp, _supports)
