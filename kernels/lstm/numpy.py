"""The LSTM on the CPU: one product for all inputs, a step in preallocated buffers, one product per weight after.

Saved for the gradient, per step and row: for `layer` and `layer-theano` 10 H floats (the normalised input and
recurrent sides 4 H each, cell, hidden state) and three scale factors; the gates are computed again from them.
For `none` and `layer-cell` 6 H: the gates, cell and hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from duoln.kernels import recurrent

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import lstm
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")
_NORMED_SIDES = ("layer", "layer-theano")


class _Terms(NamedTuple):
    """What multiplies and what is added to the two sides of the gates, halved where a sigmoid follows."""

    gain_x: Array
    gain_h: Array
    biases: Array


class _Saved(NamedTuple):
    x: Array
    first: tuple[Array, Array]
    weights: tuple[Array, Array]
    mask: Array | None
    norms: dict[str, Array]
    attrs: dict[str, Any]
    terms: _Terms
    side: recurrent.Side | None
    """The input's side, where it is normalised."""
    inner: Array
    """The normalised recurrent side where there is one, else the gates: (T, B, 4 H)."""
    factors: Array | None
    """One over the deviation of the recurrent side: (T, B, 1)."""
    cells: Array
    cell_factors: Array | None
    hidden: Array


def _supports(be: Backend, x: Array, h: Array, c: Array, *arrays: Array, norm: str = "layer", eps: float = 1e-5,
              eps_place: str = "inside", reverse: bool = False) -> str | None:
    if norm not in _VARIANTS:
        return f"norm '{norm}' has no fused rule"
    if eps_place != "inside":
        return "epsilon is outside the root"
    return None if x.size and h.size else "there are no values"


def _terms(norms: dict[str, Array], bias: Array, norm: str) -> _Terms:
    half = recurrent.halves(len(bias), len(bias) * 3 // 4, bias.dtype)
    if norm not in _NORMED_SIDES:
        return _Terms(half, half, half * bias)
    return _Terms(half * norms["gain_x"], half * norms["gain_h"], half * (norms["bias_x"] + norms["bias_h"] + bias))


def _gates(z: Array) -> list[Array]:
    hidden = z.shape[1] // 4
    return [z[:, k * hidden:(k + 1) * hidden] for k in range(4)]


class _CellNorm:
    """Layer norm of the cell, in buffers of one step."""

    def __init__(self, norms: dict[str, Array], eps: float, like: Array) -> None:
        self.gain, self.bias, self.eps = norms["gain_c"], norms["bias_c"], eps
        self.mean_of = np.full((like.shape[1], 1), 1 / like.shape[1], like.dtype)
        self.normal = np.empty_like(like)
        self.d_gain, self.d_bias = np.zeros_like(self.gain), np.zeros_like(self.bias)

    def __call__(self, c: Array, out: Array) -> Array:
        """The normalised cell into `out`; one over the deviation."""
        np.subtract(c, c @ self.mean_of, self.normal)
        factor = recurrent.scale_rows(self.normal, self.eps)
        np.multiply(self.normal, self.gain, out)
        np.add(out, self.bias, out)
        return factor

    def gradient(self, g: Array, factor: Array, scratch: Array) -> None:
        """Turn the gradient after the norm into the one before it, in place, and add to those of gain and bias."""
        self.d_bias += recurrent.column_sums(g)
        np.multiply(g, self.normal, scratch)
        self.d_gain += recurrent.column_sums(scratch)
        np.multiply(g, self.gain, g)
        np.subtract(g, g @ self.mean_of, g)
        recurrent.scale_rows_gradient(g, self.normal, factor, scratch)


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    norm, eps, first = attrs["norm"], attrs["eps"], (h, c)
    steps, batch, n_in = x.shape
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    terms = _terms(norms, bias, norm)
    flat = x.reshape(steps * batch, n_in)
    side: recurrent.Side | None = None
    factors = None
    if norm in _NORMED_SIDES:
        product = flat @ w_x
        if norm == "layer-theano":
            product += bias
        side = recurrent.Side(*recurrent.normalise(be, product, eps))
        given, w_h = side.normal * terms.gain_x, recurrent.centred(w_h)
        factors, w_step = np.empty((steps, batch, 1), x.dtype), w_h
    else:
        given, w_step = flat @ (w_x * terms.gain_x), w_h * terms.gain_h
    given += terms.biases
    given = given.reshape(steps, batch, -1)
    inner = given if factors is None else np.empty_like(given)
    cells, outs = np.empty((steps, *h.shape), x.dtype), np.empty((steps, *h.shape), x.dtype)
    cell_norm = _CellNorm(norms, eps, h) if norm != "none" else None
    cell_factors = None if cell_norm is None else np.empty((steps, batch, 1), x.dtype)
    wide, small = np.empty_like(given[0]), np.empty_like(h)
    for t in recurrent.order(steps, attrs["reverse"]):
        z, cell = given[t], cells[t]
        if factors is not None:
            np.matmul(h, w_step, out=inner[t])
            factors[t] = recurrent.scale_rows(inner[t], eps)
            np.multiply(inner[t], terms.gain_h, wide)
        else:
            np.matmul(h, w_step, out=wide)
        np.add(z, wide, z)
        recurrent.finish_gates(z, 3 * h.shape[1])
        forget, into, out, candidate = _gates(z)
        np.multiply(forget, c, cell)
        np.multiply(into, candidate, small)
        np.add(cell, small, cell)
        if cell_norm is not None and cell_factors is not None:
            cell_factors[t] = cell_norm(cell, small)
            np.tanh(small, small)
        else:
            np.tanh(cell, small)
        np.multiply(out, small, outs[t])
        if mask is not None:
            np.copyto(outs[t], h, where=~mask[t][:, None])
            np.copyto(cell, c, where=~mask[t][:, None])
        h, c = outs[t], cell
    saved = _Saved(x, first, (w_x, w_h), mask, norms, attrs, terms, side, inner, factors, cells, cell_factors, outs)
    return (outs, h.copy(), c.copy()), saved


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...], cell_norm: _CellNorm | None,
               ) -> tuple[Array, Array, Array, Array]:
    """Gradients of all gates and of all recurrent products, (T, B, 4 H) each, and of the first states."""
    (h0, c0), (_, w_h), terms = saved.first, saved.weights, saved.terms
    steps, batch, hidden = saved.hidden.shape
    reverse, w_back = saved.attrs["reverse"], np.ascontiguousarray(w_h.T)
    g_out, g_h, g_c = gouts
    dh, dc = (np.zeros_like(h0) if g is None else np.array(g) for g in (g_h, g_c))
    d_gates = np.empty((steps, batch, 4 * hidden), h0.dtype)
    d_inner = d_gates if saved.factors is None else np.empty_like(d_gates)
    z, wide = np.empty_like(d_gates[0]), np.empty_like(d_gates[0])
    shown, small = np.empty_like(h0), np.empty_like(h0)
    times = recurrent.order(steps, reverse)
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
        gates = saved.inner[t]
        if saved.side is not None:
            np.multiply(saved.side.normal[t * batch:(t + 1) * batch], terms.gain_x, z)
            np.multiply(saved.inner[t], terms.gain_h, wide)
            np.add(z, wide, z)
            np.add(z, terms.biases, z)
            recurrent.finish_gates(z, 3 * hidden)
            gates = z
        forget, into, out, candidate = _gates(gates)
        if cell_norm is not None:
            cell_norm(saved.cells[t], shown)
            np.tanh(shown, shown)
        else:
            np.tanh(saved.cells[t], shown)
        d_forget, d_into, d_out, d_candidate = _gates(d_gates[t])
        np.multiply(dh, shown, d_out)
        np.multiply(shown, shown, shown)
        np.subtract(1.0, shown, shown)
        np.multiply(shown, dh, shown)
        np.multiply(shown, out, shown)
        if cell_norm is not None and saved.cell_factors is not None:
            cell_norm.gradient(shown, saved.cell_factors[t], small)
        np.add(dc, shown, dc)
        np.multiply(dc, c_before, d_forget)
        np.multiply(dc, candidate, d_into)
        np.multiply(dc, into, d_candidate)
        np.multiply(dc, forget, dc)
        recurrent.slopes(gates, 3 * hidden, wide)
        np.multiply(d_gates[t], wide, d_gates[t])
        if saved.factors is not None:
            np.multiply(d_gates[t], saved.norms["gain_h"], d_inner[t])
            recurrent.scale_rows_gradient(d_inner[t], saved.inner[t], saved.factors[t], wide)
        np.matmul(d_inner[t], w_back, out=dh)
        if held is not None:
            dh += held[0]
            dc += held[1]
    return d_gates, d_inner, dh, dc


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    norms, norm = saved.norms, saved.attrs["norm"]
    cell_norm = _CellNorm(norms, saved.attrs["eps"], saved.first[0]) if norm != "none" else None
    d_gates, d_inner, dh, dc = _walk_back(saved, gouts, cell_norm)
    width = d_gates.shape[2]
    d, d_inner = d_gates.reshape(-1, width), d_inner.reshape(-1, width)
    before = recurrent.states_before(saved.hidden, saved.first[0], saved.attrs["reverse"])
    d_w_h = before.reshape(len(d), -1).T @ d_inner
    d_bias = recurrent.column_sums(d)
    gradients: dict[str, Array] = {}
    d_product = d
    if saved.side is not None:
        d_w_h -= d_w_h.mean(axis=1, keepdims=True)  # the mean that `centred` took out
        gradients["bias_h"] = d_bias
        gradients["gain_h"] = recurrent.column_sums(d * saved.inner.reshape(d.shape))
        d_product, gradients["gain_x"], gradients["bias_x"] = recurrent.normalise_gradient(
            be, *saved.side, norms["gain_x"], d)
        if norm == "layer-theano":
            d_bias = d_bias + recurrent.column_sums(d_product)
    if cell_norm is not None:
        gradients["gain_c"], gradients["bias_c"] = cell_norm.d_gain, cell_norm.d_bias
    w_x = saved.weights[0]
    d_x = (d_product @ w_x.T).reshape(saved.x.shape) if needs[0] else None
    d_w_x = saved.x.reshape(len(d), -1).T @ d_product if needs[3] else None
    return [d_x, dh, dc, d_w_x, d_w_h, d_bias, None, *(gradients[name] for name in norms)]


def attach() -> None:
    """Add the rule to `lstm`."""
    lstm.add(Rule("fused steps", _forward, _vjp, _supports), backend="numpy")
