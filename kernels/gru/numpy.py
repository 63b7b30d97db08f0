"""The GRU on the CPU: one product for all inputs, a step in preallocated buffers, one product per weight after.

Saved for the gradient, per step and row: for `layer` and `layer-theano` 7 H floats (the normalised input and
recurrent sides 3 H each, hidden state) and four scale factors; the gates are computed again from them. For
`none` 5 H: the gates 3 H, the recurrent side of the candidate and the hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from duoln.kernels.recurrent import shared as recurrent

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import gru
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-theano")


class _Terms(NamedTuple):
    """Gains of both sides and their biases; halved for the gates, whole for the candidate."""

    gain_x: Array
    bias_x: Array
    gain_h: Array
    bias_h: Array


class _Saved(NamedTuple):
    x: Array
    first: Array
    weights: tuple[Array, Array]
    mask: Array | None
    norms: dict[str, Array]
    attrs: dict[str, Any]
    terms: _Terms
    sides: tuple[recurrent.Side, recurrent.Side] | None
    """The input's side of gates and candidate, where they are normalised."""
    inner: Array
    """The normalised recurrent side where there is one, else the gates with the candidate: (T, B, 3 H)."""
    new_h: Array | None
    """The recurrent side of the candidate where nothing is normalised: (T, B, H)."""
    factors: Array | None
    """One over the deviation of the recurrent side of gates and candidate: (T, B, 2)."""
    hidden: Array



def _terms(norms: dict[str, Array], bias: Array | None, width: int, dtype: np.dtype) -> _Terms:
    half = recurrent.halves(width, width * 2 // 3, dtype)
    if not norms:
        assert bias is not None
        return _Terms(half, half * bias, half, np.zeros(width, dtype))
    return _Terms(half * norms["gain_x"], half * norms["bias_x"], half * norms["gain_h"], half * norms["bias_h"])


def _centred_parts(weight: Array) -> Array:
    """Each norm's part of the matrix without its rows' means."""
    cut = weight.shape[1] * 2 // 3
    return np.concatenate((recurrent.centred(weight[:, :cut]), recurrent.centred(weight[:, cut:])), axis=1)


def _scaled_sides(sides: tuple[recurrent.Side, recurrent.Side], terms: _Terms, rows: slice, out: Array) -> None:
    """The normalised input's side of some rows with its gain and bias."""
    cut = sides[0].normal.shape[1]
    np.multiply(sides[0].normal[rows], terms.gain_x[:cut], out[:, :cut])
    np.multiply(sides[1].normal[rows], terms.gain_x[cut:], out[:, cut:])
    np.add(out, terms.bias_x, out)


def _finish(z: Array, recurrent_side: Array, hidden: int, new_h: Array) -> None:
    """Gates and candidate from both sides: z becomes update, reset, candidate; `new_h` keeps the recurrent part."""
    cut = 2 * hidden
    gates = z[:, :cut]
    np.add(gates, recurrent_side[:, :cut], gates)
    recurrent.finish_gates(gates, cut)
    np.copyto(new_h, recurrent_side[:, cut:])
    candidate = z[:, cut:]
    np.multiply(z[:, hidden:cut], new_h, recurrent_side[:, cut:])
    np.add(candidate, recurrent_side[:, cut:], candidate)
    np.tanh(candidate, candidate)


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, Array], _Saved]:
    eps, first = attrs["eps"], h
    steps, batch, n_in = x.shape
    hidden = h.shape[1]
    cut = 2 * hidden
    norms = dict(zip(norm_shapes("gru", attrs["norm"], 1), norm_arrays, strict=True))
    terms = _terms(norms, bias, 3 * hidden, x.dtype)
    flat = x.reshape(steps * batch, n_in)
    given = flat @ (w_x if norms else w_x * terms.gain_x)
    sides: tuple[recurrent.Side, recurrent.Side] | None = None
    factors = new_h_all = None
    if norms:
        if attrs["norm"] == "layer-theano":
            given += bias
        sides = (recurrent.Side(*recurrent.normalise(be, given[:, :cut], eps)),
                 recurrent.Side(*recurrent.normalise(be, given[:, cut:], eps)))
        _scaled_sides(sides, terms, slice(None), given)
        w_h = _centred_parts(w_h)
        w_step, factors = w_h, np.empty((steps, batch, 2), x.dtype)
    else:
        given += terms.bias_x
        w_step, new_h_all = w_h * terms.gain_h, np.empty((steps, *h.shape), x.dtype)
    given = given.reshape(steps, batch, 3 * hidden)
    inner = given if factors is None else np.empty_like(given)
    outs = np.empty((steps, *h.shape), x.dtype)
    wide, small = np.empty_like(given[0]), np.empty_like(h)
    for t in recurrent.order(steps, attrs["reverse"]):
        z, out = given[t], outs[t]
        if factors is not None:
            np.matmul(h, w_step, out=inner[t])
            factors[t, :, :1] = recurrent.scale_rows(inner[t][:, :cut], eps)
            factors[t, :, 1:] = recurrent.scale_rows(inner[t][:, cut:], eps)
            np.multiply(inner[t], terms.gain_h, wide)
            np.add(wide, terms.bias_h, wide)
        else:
            np.matmul(h, w_step, out=wide)
        _finish(z, wide, hidden, small if new_h_all is None else new_h_all[t])
        np.subtract(z[:, cut:], h, out)
        np.multiply(out, z[:, :hidden], out)
        np.add(out, h, out)
        if mask is not None:
            np.copyto(out, h, where=~mask[t][:, None])
        h = out
    saved = _Saved(x, first, (w_x, w_h), mask, norms, attrs, terms, sides, inner, new_h_all, factors, outs)
    return (outs, h.copy()), saved


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...]) -> tuple[Array, Array, Array, Array]:
    """Gradients of both sides after their norms and of the products with W_h, (T, B, 3 H), and of the first state."""
    h0, (_, w_h), terms, norms = saved.first, saved.weights, saved.terms, saved.norms
    steps, batch, hidden = saved.hidden.shape
    cut, w_back = 2 * hidden, np.ascontiguousarray(w_h.T)
    g_out, g_h = gouts
    dh = np.zeros_like(h0) if g_h is None else np.array(g_h)
    d_side = np.empty((steps, batch, 3 * hidden), h0.dtype)
    d_recurrent = np.empty_like(d_side)
    d_product = d_recurrent if saved.factors is None else np.empty_like(d_side)
    z, wide = np.empty_like(d_side[0]), np.empty_like(d_side[0])
    small, new_h = np.empty_like(h0), np.empty_like(h0)
    times = recurrent.order(steps, saved.attrs["reverse"])
    for position in range(steps - 1, -1, -1):
        t = times[position]
        h_before = saved.hidden[times[position - 1]] if position else h0
        if g_out is not None:
            np.add(dh, g_out[t], dh)
        held: Array | None = None
        if saved.mask is not None:
            still = ~saved.mask[t][:, None]
            held = np.where(still, dh, 0)
            np.copyto(dh, 0, where=still)
        gates = saved.inner[t]
        if saved.sides is not None:
            _scaled_sides(saved.sides, terms, slice(t * batch, (t + 1) * batch), z)
            np.multiply(saved.inner[t], terms.gain_h, wide)
            np.add(wide, terms.bias_h, wide)
            _finish(z, wide, hidden, new_h)
            gates = z
        elif saved.new_h is not None:
            new_h = saved.new_h[t]
        update, reset, candidate = gates[:, :hidden], gates[:, hidden:cut], gates[:, cut:]
        d, d_h = d_side[t], d_recurrent[t]
        np.subtract(candidate, h_before, small)
        np.multiply(small, dh, d[:, :hidden])
        np.multiply(dh, update, d[:, cut:])
        recurrent.slopes(gates, cut, wide)
        np.multiply(d[:, cut:], wide[:, cut:], d[:, cut:])
        np.multiply(d[:, cut:], new_h, d[:, hidden:cut])
        np.multiply(d[:, :cut], wide[:, :cut], d[:, :cut])
        np.copyto(d_h[:, :cut], d[:, :cut])
        np.multiply(d[:, cut:], reset, d_h[:, cut:])
        np.multiply(dh, update, small)
        np.subtract(dh, small, dh)
        if saved.factors is not None:
            np.multiply(d_h, norms["gain_h"], d_product[t])
            for part, factor in ((slice(0, cut), saved.factors[t, :, :1]), (slice(cut, None), saved.factors[t, :, 1:])):
                recurrent.scale_rows_gradient(d_product[t][:, part], saved.inner[t][:, part], factor, wide[:, part])
        dh += d_product[t] @ w_back
        if held is not None:
            dh += held
    return d_side, d_recurrent, d_product, dh


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    d_side, d_recurrent, d_product, dh = (a.reshape(-1, a.shape[-1]) for a in _walk_back(saved, gouts))
    norms, cut = saved.norms, d_side.shape[1] * 2 // 3
    before = recurrent.states_before(saved.hidden, saved.first, saved.attrs["reverse"]).reshape(len(d_side), -1)
    d_w_h = before.T @ d_product
    gradients: dict[str, Array] = {}
    d_xw, d_bias = d_side, None
    if saved.sides is None:
        d_bias = recurrent.column_sums(d_side)
    else:
        d_w_h = _centred_parts(d_w_h)  # the mean that was taken out of W_h
        gradients["bias_h"] = recurrent.column_sums(d_recurrent)
        gradients["gain_h"] = recurrent.column_sums(d_recurrent * saved.inner.reshape(d_side.shape))
        parts = [recurrent.normalise_gradient(be, *side, norms["gain_x"][part], d_side[:, part])
                 for side, part in zip(saved.sides, (slice(0, cut), slice(cut, None)), strict=True)]
        d_xw, gradients["gain_x"], gradients["bias_x"] = (
            np.concatenate(pair, axis=-1) for pair in zip(*parts, strict=True))
        if saved.attrs["norm"] == "layer-theano":
            d_bias = recurrent.column_sums(d_xw)
    d_x = (d_xw @ saved.weights[0].T).reshape(saved.x.shape) if needs[0] else None
    d_w_x = saved.x.reshape(len(d_side), -1).T @ d_xw if needs[2] else None
    return [d_x, dh, d_w_x, d_w_h, d_bias, None, *(gradients[name] for name in norms)]


def attach() -> None:
    """Add the rule to `gru`."""
    gru.add(Rule("fused steps", _forward, _vjp, recurrent.supports(_VARIANTS)), backend="numpy")
