"""The GRU on the CPU: one product for all inputs, time steps in preallocated buffers, then one product per weight.

Saved for the gradient, per time step and row: for `layer` and `layer-theano` 7 H floats (x_proj and h_proj after their
norms 3 H each, hidden state) and rstd of four norms; the gates are computed again from them. For `none` 5 H: the gates
3 H, the contribution of the state to n, and the hidden state.
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
    """Gains and biases of x_proj and h_proj; those of z and r are halved, those of n are not."""

    gain_x: Array
    bias_x: Array
    gain_h: Array
    bias_h: Array


class _Saved(NamedTuple):
    walked: recurrent.Walked
    norms: dict[str, Array]
    norm: str
    terms: _Terms
    normalised: recurrent.Normalised | None
    """Set if there are norms."""
    gates: Array | None
    """(T, B, 3 H), set if there are no norms."""
    h_n: Array | None
    """The contribution of the state to n, (T, B, H), set if there are no norms."""


def _terms(norms: dict[str, Array], bias: Array | None, width: int, dtype: np.dtype) -> _Terms:
    half = recurrent.halves(width, width * 2 // 3, dtype)
    if not norms:
        assert bias is not None
        return _Terms(half, half * bias, half, np.zeros(width, dtype))
    return _Terms(half * norms["gain_x"], half * norms["bias_x"], half * norms["gain_h"], half * norms["bias_h"])


def _parts(width: int) -> tuple[slice, slice]:
    """The columns of the two norms: those of z and r, and those of n."""
    cut = width * 2 // 3
    return slice(0, cut), slice(cut, None)


def _centred(weight: Array) -> Array:
    """The matrix without its rows' means; each norm's columns have their own mean."""
    return np.concatenate([recurrent.centred(weight[:, part]) for part in _parts(weight.shape[1])], axis=1)


def _normalise(proj: Array, parts: Sequence[slice], eps: float, rstd: Array) -> None:
    """Divide each part by its deviation, in place; `rstd` receives the reciprocal deviations, (rows, parts)."""
    for k, part in enumerate(parts):
        rstd[:, k:k + 1] = recurrent.normalise_rows(proj[:, part], eps)


def _affine(xhat: Array, gain: Array, bias: Array, out: Array) -> Array:
    np.multiply(xhat, gain, out)
    return np.add(out, bias, out)


def _activate(x_gates: Array, h_gates: Array, hidden: int, h_n: Array) -> None:
    """Turn `x_gates` into z, r, n, in place; `h_n` keeps the state's contribution to n. `h_gates` is overwritten."""
    cut = 2 * hidden
    zr, n = x_gates[:, :cut], x_gates[:, cut:]
    np.add(zr, h_gates[:, :cut], zr)
    recurrent.activate(zr, cut)
    np.copyto(h_n, h_gates[:, cut:])
    np.multiply(x_gates[:, hidden:cut], h_n, h_gates[:, cut:])
    np.add(n, h_gates[:, cut:], n)
    np.tanh(n, n)


class _NormedGates:
    """z, r, n of each time step, with normalised x_proj and h_proj, which are kept for the gradient."""

    def __init__(self, x: Array, w_x: Array, w_h: Array, inner_bias: Array | None, terms: _Terms, eps: float) -> None:
        self._w_h, self._inner_bias, self._terms, self._eps = w_h, inner_bias, terms, eps
        xhat_x = recurrent.project_input(x, w_x)
        two_a_row, self._parts = (*x.shape[:2], 2), _parts(xhat_x.shape[2])
        self.normalised = recurrent.Normalised(xhat_x, host.empty(xhat_x.shape, x.dtype),
                                               host.empty(two_a_row, x.dtype), host.empty(two_a_row, x.dtype))
        self._gates, self._h_gates = host.empty((2, *xhat_x.shape[1:]), x.dtype)
        self._h_n = host.empty((len(self._gates), len(w_h)), x.dtype)

    def __call__(self, t: int, h: Array) -> Array:
        terms, (xhat_x, xhat_h, rstd_x, rstd_h) = self._terms, self.normalised
        x_proj, h_proj = xhat_x[t], xhat_h[t]
        if self._inner_bias is not None:
            np.add(x_proj, self._inner_bias, x_proj)
        _normalise(x_proj, self._parts, self._eps, rstd_x[t])
        np.matmul(h, self._w_h, out=h_proj)
        _normalise(h_proj, self._parts, self._eps, rstd_h[t])
        gates = _affine(x_proj, terms.gain_x, terms.bias_x, self._gates)
        _activate(gates, _affine(h_proj, terms.gain_h, terms.bias_h, self._h_gates), h.shape[1], self._h_n)
        return gates


class _PlainGates:
    """z, r, n of each time step without norms. They overwrite x_proj and are kept there for the gradient."""

    def __init__(self, x: Array, w_x: Array, w_h: Array, terms: _Terms) -> None:
        self.gates = recurrent.project_input(x, w_x * terms.gain_x)
        self.h_n = host.empty((*x.shape[:2], len(w_h)), x.dtype)
        self._w_h, self._bias = w_h * terms.gain_h, terms.bias_x
        self._h_proj = host.empty(self.gates.shape[1:], x.dtype)

    def __call__(self, t: int, h: Array) -> Array:
        gates = self.gates[t]
        np.add(gates, self._bias, gates)
        np.matmul(h, self._w_h, out=self._h_proj)
        _activate(gates, self._h_proj, h.shape[1], self.h_n[t])
        return gates


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, Array], _Saved]:
    norm, h0, size = attrs["norm"], h, h.shape[1]
    norms = dict(zip(norm_shapes("gru", norm, 1), norm_arrays, strict=True))
    terms = _terms(norms, bias, 3 * size, x.dtype)
    gates_at: _NormedGates | _PlainGates
    if norms:
        w_x, w_h = _centred(w_x), _centred(w_h)
        inner_bias = _centred(bias[None])[0] if norm == "layer-theano" and bias is not None else None
        gates_at = normed = _NormedGates(x, w_x, w_h, inner_bias, terms, attrs["eps"])
        normalised, all_gates, h_n = normed.normalised, None, None
    else:
        gates_at = plain = _PlainGates(x, w_x, w_h, terms)
        normalised, all_gates, h_n = None, plain.gates, plain.h_n
    hidden = host.empty((len(x), *h.shape), x.dtype)
    for t in recurrent.order(len(x), attrs["reverse"]):
        gates, h_new = gates_at(t, h), hidden[t]
        np.subtract(gates[:, 2 * size:], h, h_new)
        np.multiply(h_new, gates[:, :size], h_new)
        np.add(h_new, h, h_new)
        if mask is not None:
            np.copyto(h_new, h, where=~mask[t][:, None])
        h = h_new
    walked = recurrent.Walked(x, h0, w_x, w_h, mask, hidden, attrs["reverse"])
    return (hidden, h.copy()), _Saved(walked, norms, norm, terms, normalised, all_gates, h_n)


class _Gradients(NamedTuple):
    """The results of the backward time loop: gradients of both products (T, B, 3 H), the first state and the norms."""

    x_proj: Array
    h_proj: Array
    h: Array
    bias: Array
    norms: dict[str, Array]


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...]) -> _Gradients:
    walked, terms, norms, normalised = saved.walked, saved.terms, saved.norms, saved.normalised
    steps, batch, hidden = walked.hidden.shape
    wide, small, dtype = (batch, 3 * hidden), (batch, hidden), walked.h.dtype
    cut, parts, w_back = 2 * hidden, _parts(3 * hidden), np.ascontiguousarray(walked.w_h.T)
    d_hidden, d_last = gouts
    dh = np.zeros(small, dtype) if d_last is None else np.array(d_last)
    d_x_proj, d_h_proj = host.empty((steps, *wide), dtype), host.empty((steps, *wide), dtype)
    gates_again, scratch, d_of_step, d_h_of_step = (host.empty(wide, dtype) for _ in range(4))
    narrow, h_n_again, ones = host.empty(small, dtype), host.empty(small, dtype), np.ones(batch, dtype)
    d_gain_x, d_bias_x, d_gain_h, d_bias_h = np.zeros((4, 3 * hidden), dtype)
    times = recurrent.order(steps, walked.reverse)
    for position in range(steps - 1, -1, -1):
        t = times[position]
        h_before = walked.hidden[times[position - 1]] if position else walked.h
        if d_hidden is not None:
            np.add(dh, d_hidden[t], dh)
        aside = [] if walked.mask is None else recurrent.set_aside(walked.mask[t], dh)
        if normalised is None:
            assert saved.gates is not None and saved.h_n is not None
            gates, h_n, d, d_h = saved.gates[t], saved.h_n[t], d_x_proj[t], d_h_proj[t]
        else:
            gates, h_n, d, d_h = gates_again, h_n_again, d_of_step, d_h_of_step
            _affine(normalised.xhat_x[t], terms.gain_x, terms.bias_x, gates)
            _activate(gates, _affine(normalised.xhat_h[t], terms.gain_h, terms.bias_h, scratch), hidden, h_n)
        z, r, n = gates[:, :hidden], gates[:, hidden:cut], gates[:, cut:]
        np.subtract(n, h_before, narrow)
        np.multiply(narrow, dh, d[:, :hidden])
        np.multiply(dh, z, d[:, cut:])
        recurrent.slopes(gates, cut, scratch)
        np.multiply(d[:, cut:], scratch[:, cut:], d[:, cut:])
        np.multiply(d[:, cut:], h_n, d[:, hidden:cut])
        np.multiply(d[:, :cut], scratch[:, :cut], d[:, :cut])
        np.copyto(d_h[:, :cut], d[:, :cut])
        np.multiply(d[:, cut:], r, d_h[:, cut:])
        np.multiply(dh, z, narrow)
        np.subtract(dh, narrow, dh)
        np.add(d_bias_x, ones @ d, d_bias_x)
        if normalised is not None:
            np.add(d_bias_h, ones @ d_h, d_bias_h)
            for d_gates, xhat, rstd, gain, d_gain, d_proj in (
                    (d, normalised.xhat_x, normalised.rstd_x, norms["gain_x"], d_gain_x, d_x_proj),
                    (d_h, normalised.xhat_h, normalised.rstd_h, norms["gain_h"], d_gain_h, d_h_proj)):
                recurrent.norm_gradient(d_gates, xhat[t], rstd[t], gain, parts, d_gain, d_proj[t], scratch, ones)
        dh += d_h_proj[t] @ w_back
        for part in aside:
            dh += part
    return _Gradients(d_x_proj, d_h_proj, dh, d_bias_x,
                      {"gain_x": d_gain_x, "bias_x": d_bias_x, "gain_h": d_gain_h, "bias_h": d_bias_h})


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    gradients = _walk_back(saved, gouts)
    d_x, d_w_x, d_w_h = recurrent.product_gradients(saved.walked, gradients.x_proj, gradients.h_proj, needs[0])
    d_bias: Array | None = gradients.bias
    if saved.norms:  # remove the means that `_centred` removed from the weights
        d_w_x, d_w_h, d_bias = _centred(d_w_x), _centred(d_w_h), None
        if saved.norm == "layer-theano":
            d_bias = _centred(recurrent.column_sums(gradients.x_proj.reshape(-1, gradients.x_proj.shape[2]))[None])[0]
    return [d_x, gradients.h, d_w_x, d_w_h, d_bias, None, *(gradients.norms[name] for name in saved.norms)]


def attach() -> None:
    """Add the rule to `gru`."""
    pair = side_by_side(*ragged(_forward, _vjp, states=1), states=1)
    gru.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
