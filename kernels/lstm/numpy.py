"""The LSTM on the CPU: one product for all inputs, a step in preallocated buffers, one product per weight after.

Saved for the gradient, per step and row: for `layer` and `layer-theano` 10 H floats (the normalised input and
recurrent sides 4 H each, cell, hidden state) and three scale factors; the gates are computed again from them.
For `none` and `layer-cell` 6 H: the gates, cell and hidden state. With `remat` 2 H, cell and hidden state: since all
states are known, the rest is computed again by one product over all steps for each weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lstm.gates import NORMED_SIDES, CellNorm, make_terms, split_gates
from duoln.kernels.lstm.step import step_rule
from duoln.kernels.recurrent import shared as recurrent
from duoln.kernels.recurrent.parts import side_by_side
from duoln.kernels.recurrent.ragged import ragged
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")


class _Saved(NamedTuple):
    x: Array
    first: tuple[Array, Array]
    weights: tuple[Array, Array]
    mask: Array | None
    norms: dict[str, Array]
    attrs: dict[str, Any]
    terms: recurrent.Terms
    sides: _Sides | None
    """None where they are to be computed again."""
    cells: Array
    hidden: Array
    bias: Array


class _Sides(NamedTuple):
    """What goes into the gates of all steps."""

    outer: Array
    """The normalised input's side where there is one, else the gates: (T, B, 4 H)."""
    inner: Array | None
    """The normalised recurrent side, where there is one: (T, B, 4 H)."""
    factors: tuple[Array, Array] | None
    """One over the deviation of both sides: (T, B, 1) each."""


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    norm, eps, first = attrs["norm"], attrs["eps"], (h, c)
    steps, batch, _ = x.shape
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    terms = make_terms(norms, bias, norm)
    inner, factors = None, None
    if norm in NORMED_SIDES:
        w_x, w_h = recurrent.centred(w_x), recurrent.centred(w_h)
        w_x_step, w_h_step = w_x, w_h
    else:
        w_x_step, w_h_step = w_x * terms.gain_x, w_h * terms.gain_h
    outer = recurrent.input_side(x, w_x_step)
    if norm in NORMED_SIDES:
        inner = host.empty_like(outer)
        factors = host.empty((steps, batch, 1), x.dtype), host.empty((steps, batch, 1), x.dtype)
    inner_bias = bias - bias.mean() if norm == "layer-theano" else None
    cells, outs = host.empty((steps, *h.shape), x.dtype), host.empty((steps, *h.shape), x.dtype)
    cell_norm = CellNorm(norms, eps, h) if norm != "none" else None
    wide, scratch, small = host.empty_like(outer[0]), host.empty_like(outer[0]), host.empty_like(h)
    for t in recurrent.order(steps, attrs["reverse"]):
        cell, z = cells[t], outer[t]
        if inner is not None and factors is not None:
            if inner_bias is not None:
                np.add(z, inner_bias, z)
            factors[0][t] = recurrent.scale_rows(z, eps)
            np.matmul(h, w_h_step, out=inner[t])
            factors[1][t] = recurrent.scale_rows(inner[t], eps)
            z = recurrent.both_sides(outer[t], inner[t], terms, scratch, wide)
        else:
            np.matmul(h, w_h_step, out=wide)
            np.add(z, wide, z)
            np.add(z, terms.biases, z)
        recurrent.finish_gates(z, 3 * h.shape[1])
        forget, into, out, candidate = split_gates(z)
        np.multiply(forget, c, cell)
        np.multiply(into, candidate, small)
        np.add(cell, small, cell)
        if cell_norm is not None:
            cell_norm(cell, small)
            np.tanh(small, small)
        else:
            np.tanh(cell, small)
        np.multiply(out, small, outs[t])
        if mask is not None:
            np.copyto(outs[t], h, where=~mask[t][:, None])
            np.copyto(cell, c, where=~mask[t][:, None])
        h, c = outs[t], cell
    sides = None if attrs["remat"] else _Sides(outer, inner, factors)
    saved = _Saved(x, first, (w_x, w_h), mask, norms, attrs, terms, sides, cells, outs, bias)
    return (outs, h.copy(), c.copy()), saved


def _sides_again(saved: _Saved) -> _Sides:
    """The sides of all gates from the states, which are all known: one product for each weight."""
    w_x, w_h = saved.weights
    shape = (*saved.hidden.shape[:2], w_h.shape[1])
    before = recurrent.states_before(saved.hidden, saved.first[0], saved.attrs["reverse"]).reshape(-1, len(w_h))
    flat = saved.x.reshape(-1, saved.x.shape[2])
    if saved.attrs["norm"] in NORMED_SIDES:
        outer, inner = flat @ w_x, before @ w_h
        if saved.attrs["norm"] == "layer-theano":
            outer += saved.bias - saved.bias.mean()
        factors = tuple(recurrent.scale_rows(a, saved.attrs["eps"]).reshape(*shape[:2], 1) for a in (outer, inner))
        return _Sides(outer.reshape(shape), inner.reshape(shape), (factors[0], factors[1]))
    gates = flat @ (w_x * saved.terms.gain_x)
    gates += before @ (w_h * saved.terms.gain_h)
    gates += saved.terms.biases
    recurrent.finish_gates(gates, 3 * len(w_h))
    return _Sides(gates.reshape(shape), None, None)


class _Gradients(NamedTuple):
    """What the walk back leaves: gradients of both products (T, B, 4 H), of the first states, and of the norms."""

    outer: Array
    inner: Array
    h: Array
    c: Array
    biases: Array
    norms: dict[str, Array]


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...]) -> _Gradients:
    (h0, c0), (_, w_h), terms, norms = saved.first, saved.weights, saved.terms, saved.norms
    steps, batch, hidden = saved.hidden.shape
    w_back = np.ascontiguousarray(w_h.T)
    outer, inner, factors = saved.sides or _sides_again(saved)
    cell_norm = CellNorm(norms, saved.attrs["eps"], h0) if "gain_c" in norms else None
    g_out, g_h, g_c = gouts
    dh, dc = (np.zeros_like(h0) if g is None else np.array(g) for g in (g_h, g_c))
    d_outer = host.empty_like(outer)
    d_inner = d_outer if inner is None else host.empty_like(outer)
    d_biases = np.zeros(4 * hidden, h0.dtype)
    d_gain_x, d_gain_h = np.zeros_like(d_biases), np.zeros_like(d_biases)
    scratch, wide, d_step = (host.empty_like(outer[0]) for _ in range(3))
    shown, small, ones = host.empty_like(h0), host.empty_like(h0), np.ones(batch, h0.dtype)
    times = recurrent.order(steps, saved.attrs["reverse"])
    for position in range(steps - 1, -1, -1):
        t = times[position]
        c_before = saved.cells[times[position - 1]] if position else c0
        if g_out is not None:
            np.add(dh, g_out[t], dh)
        held: tuple[Array, Array] | None = None
        if saved.mask is not None:  # a held row hands its gradients on, and this step sees none
            still = ~saved.mask[t][:, None]
            held = np.where(still, dh, 0), np.where(still, dc, 0)
            np.copyto(dh, 0, where=still)
            np.copyto(dc, 0, where=still)
        gates, d = outer[t], d_outer[t]
        if inner is not None:
            gates, d = recurrent.both_sides(outer[t], inner[t], terms, scratch, wide), d_step
            recurrent.finish_gates(gates, 3 * hidden)
        forget, into, out, candidate = split_gates(gates)
        cell_factor = None
        if cell_norm is not None:
            cell_factor = cell_norm(saved.cells[t], shown)
            np.tanh(shown, shown)
        else:
            np.tanh(saved.cells[t], shown)
        d_forget, d_into, d_out, d_candidate = split_gates(d)
        np.multiply(dh, shown, d_out)
        np.multiply(shown, shown, shown)
        np.subtract(1.0, shown, shown)
        np.multiply(shown, dh, shown)
        np.multiply(shown, out, shown)
        if cell_norm is not None and cell_factor is not None:
            cell_norm.gradient(shown, cell_factor, small)
        np.add(dc, shown, dc)
        np.multiply(dc, c_before, d_forget)
        np.multiply(dc, candidate, d_into)
        np.multiply(dc, into, d_candidate)
        np.multiply(dc, forget, dc)
        recurrent.slopes(gates, 3 * hidden, wide)
        np.multiply(d, wide, d)
        d_biases += ones @ d
        if inner is not None and factors is not None:
            for normal, factor, gain, d_gain, product in (
                    (outer[t], factors[0][t], norms["gain_x"], d_gain_x, d_outer[t]),
                    (inner[t], factors[1][t], norms["gain_h"], d_gain_h, d_inner[t])):
                np.multiply(d, normal, wide)
                np.add(d_gain, ones @ wide, d_gain)
                np.multiply(d, gain, product)
                recurrent.scale_rows_gradient(product, normal, factor, wide)
        np.matmul(d_inner[t], w_back, out=dh)
        if held is not None:
            dh += held[0]
            dc += held[1]
    found = {"gain_x": d_gain_x, "bias_x": d_biases, "gain_h": d_gain_h, "bias_h": d_biases}
    if cell_norm is not None:
        found |= {"gain_c": cell_norm.d_gain, "bias_c": cell_norm.d_bias}
    return _Gradients(d_outer, d_inner, dh, dc, d_biases, found)


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walked = _walk_back(saved, gouts)
    d_outer, d_inner = (a.reshape(-1, a.shape[2]) for a in (walked.outer, walked.inner))
    rows = len(d_outer)
    before = recurrent.states_before(saved.hidden, saved.first[0], saved.attrs["reverse"])
    d_w_h, d_w_x = before.reshape(rows, -1).T @ d_inner, saved.x.reshape(rows, -1).T @ d_outer
    d_bias = walked.biases
    if saved.attrs["norm"] in NORMED_SIDES:  # the means that `centred` took out
        d_w_h, d_w_x = recurrent.centred(d_w_h), recurrent.centred(d_w_x)
        if saved.attrs["norm"] == "layer-theano":
            inside = recurrent.column_sums(d_outer)
            d_bias = d_bias + inside - inside.mean()
    d_x = (d_outer @ saved.weights[0].T).reshape(saved.x.shape) if needs[0] else None
    return [d_x, walked.h, walked.c, d_w_x, d_w_h, d_bias, None, *(walked.norms[name] for name in saved.norms)]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    lstm_cell.add(step_rule(), backend="numpy")
    pair = side_by_side(*ragged(_forward, _vjp, states=2), states=2)
    lstm.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
