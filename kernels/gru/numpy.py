"""The GRU on the CPU: one product for all inputs, a step in preallocated buffers, one product per weight after.

Saved for the gradient, per step and row: for `layer` and `layer-theano` 7 H floats (the normalised input and
recurrent sides 3 H each, hidden state) and four scale factors; the gates are computed again from them. For
`none` 5 H: the gates 3 H, the recurrent side of the candidate and the hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.recurrent import shared as recurrent
from duoln.kernels.recurrent.parts import side_by_side
from duoln.kernels.recurrent.ragged import ragged
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
    outer: Array
    """The normalised input's side where there is one, else the gates with the candidate: (T, B, 3 H)."""
    inner: Array
    """The normalised recurrent side where there is one, else that of the candidate: (T, B, 3 H or H)."""
    factors: tuple[Array, Array] | None
    """One over the deviation of both sides, for gates and candidate: (T, B, 2) each."""
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


def _scale_parts(x: Array, eps: float) -> Array:
    """Divide gates and candidate by their deviations, in place; the two factors of each row, (rows, 2)."""
    cut = x.shape[1] * 2 // 3
    return np.concatenate((recurrent.scale_rows(x[:, :cut], eps), recurrent.scale_rows(x[:, cut:], eps)), axis=1)


def _scale_parts_gradient(gradient: Array, normal: Array, factors: Array, scratch: Array) -> None:
    """Turn the gradient after `_scale_parts` into the one before it, in place."""
    cut = gradient.shape[1] * 2 // 3
    for part, factor in ((slice(0, cut), factors[:, :1]), (slice(cut, None), factors[:, 1:])):
        recurrent.scale_rows_gradient(gradient[:, part], normal[:, part], factor, scratch[:, part])


def _scaled(normal: Array, gain: Array, bias: Array, out: Array) -> Array:
    np.multiply(normal, gain, out)
    return np.add(out, bias, out)


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
    steps, batch, _ = x.shape
    hidden = h.shape[1]
    norms = dict(zip(norm_shapes("gru", attrs["norm"], 1), norm_arrays, strict=True))
    terms = _terms(norms, bias, 3 * hidden, x.dtype)
    factors, inner_bias = None, None
    if norms:
        w_x, w_h = _centred_parts(w_x), _centred_parts(w_h)
        w_x_step, w_h_step = w_x, w_h
        if attrs["norm"] == "layer-theano" and bias is not None:
            inner_bias = _centred_parts(bias[None])[0]
    else:
        w_x_step, w_h_step = w_x * terms.gain_x, w_h * terms.gain_h
    outer = recurrent.input_side(x, w_x_step)
    if norms:
        factors = host.empty((steps, batch, 2), x.dtype), host.empty((steps, batch, 2), x.dtype)
    inner = host.empty((steps, batch, (3 if norms else 1) * hidden), x.dtype)
    outs = host.empty((steps, *h.shape), x.dtype)
    wide, scratch, small = host.empty_like(outer[0]), host.empty_like(outer[0]), host.empty_like(h)
    for t in recurrent.order(steps, attrs["reverse"]):
        z, out, kept = outer[t], outs[t], inner[t]
        if factors is not None:
            if inner_bias is not None:
                np.add(z, inner_bias, z)
            factors[0][t] = _scale_parts(z, eps)
            np.matmul(h, w_h_step, out=kept)
            factors[1][t] = _scale_parts(kept, eps)
            z = _scaled(z, terms.gain_x, terms.bias_x, scratch)
            _scaled(kept, terms.gain_h, terms.bias_h, wide)
            kept = small
        else:
            np.add(z, terms.bias_x, z)
            np.matmul(h, w_h_step, out=wide)
        _finish(z, wide, hidden, kept)
        np.subtract(z[:, 2 * hidden:], h, out)
        np.multiply(out, z[:, :hidden], out)
        np.add(out, h, out)
        if mask is not None:
            np.copyto(out, h, where=~mask[t][:, None])
        h = out
    saved = _Saved(x, first, (w_x, w_h), mask, norms, attrs, terms, outer, inner, factors, outs)
    return (outs, h.copy()), saved


class _Gradients(NamedTuple):
    """What the walk back leaves: gradients of both products (T, B, 3 H), of the first state, and of the norms."""

    outer: Array
    inner: Array
    h: Array
    bias: Array
    norms: dict[str, Array]


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...]) -> _Gradients:
    h0, (_, w_h), terms, norms = saved.first, saved.weights, saved.terms, saved.norms
    steps, batch, hidden = saved.hidden.shape
    cut, w_back = 2 * hidden, np.ascontiguousarray(w_h.T)
    g_out, g_h = gouts
    dh = np.zeros_like(h0) if g_h is None else np.array(g_h)
    d_outer, d_inner = host.empty_like(saved.outer), host.empty_like(saved.outer)
    z, wide, d_step, h_step = (host.empty_like(d_outer[0]) for _ in range(4))
    small, new_h, ones = host.empty_like(h0), host.empty_like(h0), np.ones(batch, h0.dtype)
    d_gain_x, d_bias_x, d_gain_h, d_bias_h = (np.zeros(3 * hidden, h0.dtype) for _ in range(4))
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
        if saved.factors is not None:
            gates = _scaled(saved.outer[t], terms.gain_x, terms.bias_x, z)
            _finish(gates, _scaled(saved.inner[t], terms.gain_h, terms.bias_h, wide), hidden, new_h)
            d, d_h = d_step, h_step
        else:
            gates, new_h, d, d_h = saved.outer[t], saved.inner[t], d_outer[t], d_inner[t]
        update, reset, candidate = gates[:, :hidden], gates[:, hidden:cut], gates[:, cut:]
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
        np.add(d_bias_x, ones @ d, d_bias_x)
        if saved.factors is not None:
            np.add(d_bias_h, ones @ d_h, d_bias_h)
            for gradient, normal, factors, gain, d_gain, product in (
                    (d, saved.outer[t], saved.factors[0][t], norms["gain_x"], d_gain_x, d_outer[t]),
                    (d_h, saved.inner[t], saved.factors[1][t], norms["gain_h"], d_gain_h, d_inner[t])):
                np.multiply(gradient, normal, wide)
                np.add(d_gain, ones @ wide, d_gain)
                np.multiply(gradient, gain, product)
                _scale_parts_gradient(product, normal, factors, wide)
        dh += d_inner[t] @ w_back
        if held is not None:
            dh += held
    found = {"gain_x": d_gain_x, "bias_x": d_bias_x, "gain_h": d_gain_h, "bias_h": d_bias_h}
    return _Gradients(d_outer, d_inner, dh, d_bias_x, found)


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walked = _walk_back(saved, gouts)
    d_outer, d_inner = (a.reshape(-1, a.shape[2]) for a in (walked.outer, walked.inner))
    rows = len(d_outer)
    before = recurrent.states_before(saved.hidden, saved.first, saved.attrs["reverse"])
    d_w_h, d_w_x = before.reshape(rows, -1).T @ d_inner, saved.x.reshape(rows, -1).T @ d_outer
    d_bias = None if saved.norms else walked.bias
    if saved.norms:  # the means that were taken out
        d_w_h, d_w_x = _centred_parts(d_w_h), _centred_parts(d_w_x)
        if saved.attrs["norm"] == "layer-theano":
            d_bias = _centred_parts(recurrent.column_sums(d_outer)[None])[0]
    d_x = (d_outer @ saved.weights[0].T).reshape(saved.x.shape) if needs[0] else None
    return [d_x, walked.h, d_w_x, d_w_h, d_bias, None, *(walked.norms[name] for name in saved.norms)]


def attach() -> None:
    """Add the rule to `gru`."""
    pair = side_by_side(*ragged(_forward, _vjp, states=1), states=1)
    gru.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
