"""The LSTM on the CPU: one product for all inputs, time steps in preallocated buffers, then one product per weight.

Saved for the gradient, per time step and row: for `layer` and `layer-theano` 10 H floats (x_proj and h_proj after their
norms 4 H each, cell, hidden state) and rstd of both norms; the gates are computed again from them. For `none` and
`layer-cell` 6 H: the gates, cell and hidden state. With `remat` 2 H: cell and hidden state. As all states are known,
one product per weight over all time steps computes the rest again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lstm.gates import NORMED_GATES, CellNorm, make_terms, split_gates
from duoln.kernels.lstm.step import step_rule
from duoln.kernels.recurrent import shared as recurrent
from duoln.kernels.recurrent.parts import side_by_side
from duoln.kernels.recurrent.ragged import ragged
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")
_ALL_GATES = (slice(None),)
"""The columns of each norm over gates; here one norm is over all gates."""


class _Saved(NamedTuple):
    walked: recurrent.Walked
    c: Array
    """The first cell."""
    cells: Array
    """The cell after each time step, (T, B, H)."""
    bias: Array
    norms: dict[str, Array]
    attrs: dict[str, Any]
    terms: recurrent.Terms
    normalised: recurrent.Normalised | None
    """Set if x_proj and h_proj are normalised and will not be computed again."""
    gates: Array | None
    """(T, B, 4 H), set if the products are not normalised and the gates will not be computed again."""


class _NormedGates:
    """f, i, o, g of each time step, with one norm over x_proj and one over h_proj; both are kept for the gradient."""

    def __init__(self, x: Array, w_x: Array, w_h: Array, inner_bias: Array | None, terms: recurrent.Terms,
                 eps: float) -> None:
        self._w_h, self._inner_bias, self._terms, self._eps = w_h, inner_bias, terms, eps
        xhat_x = recurrent.project_input(x, w_x)
        one_a_row = (*x.shape[:2], 1)
        self.normalised = recurrent.Normalised(xhat_x, host.empty(xhat_x.shape, x.dtype),
                                               host.empty(one_a_row, x.dtype), host.empty(one_a_row, x.dtype))
        self._gates, self._scratch = host.empty((2, *xhat_x.shape[1:]), x.dtype)
        self._split = split_gates(self._gates)

    def __call__(self, t: int, h: Array) -> Array:
        xhat_x, xhat_h, rstd_x, rstd_h = self.normalised
        x_proj, h_proj = xhat_x[t], xhat_h[t]
        if self._inner_bias is not None:
            np.add(x_proj, self._inner_bias, x_proj)
        rstd_x[t] = recurrent.normalise_rows(x_proj, self._eps)
        np.matmul(h, self._w_h, out=h_proj)
        rstd_h[t] = recurrent.normalise_rows(h_proj, self._eps)
        recurrent.add_gates(x_proj, h_proj, self._terms, self._gates, self._scratch)
        recurrent.activate(self._gates, 3 * h.shape[1])
        return self._split


class _PlainGates:
    """f, i, o, g of each time step without norms. They overwrite x_proj and are kept there for the gradient."""

    def __init__(self, x: Array, w_x: Array, w_h: Array, terms: recurrent.Terms) -> None:
        self.gates = recurrent.project_input(x, w_x * terms.gain_x)
        self._w_h, self._biases = w_h * terms.gain_h, terms.biases
        self._h_proj = host.empty(self.gates.shape[1:], x.dtype)

    def __call__(self, t: int, h: Array) -> Array:
        gates = self.gates[t]
        np.matmul(h, self._w_h, out=self._h_proj)
        np.add(gates, self._h_proj, gates)
        np.add(gates, self._biases, gates)
        recurrent.activate(gates, 3 * h.shape[1])
        return split_gates(gates)


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    norm, eps, (h0, c0) = attrs["norm"], attrs["eps"], (h, c)
    shape = (len(x), *h.shape)
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    terms = make_terms(norms, bias, norm)
    gates_at: _NormedGates | _PlainGates
    if norm in NORMED_GATES:
        w_x, w_h = recurrent.centred(w_x), recurrent.centred(w_h)
        inner_bias = bias - bias.mean() if norm == "layer-theano" else None
        gates_at = normed = _NormedGates(x, w_x, w_h, inner_bias, terms, eps)
        normalised, all_gates = normed.normalised, None
    else:
        gates_at = plain = _PlainGates(x, w_x, w_h, terms)
        normalised, all_gates = None, plain.gates
    cells, hidden = host.empty(shape, x.dtype), host.empty(shape, x.dtype)
    cell_norm = CellNorm(norms, eps, h) if "gain_c" in norms else None
    small = host.empty(h.shape, x.dtype)
    for t in recurrent.order(len(x), attrs["reverse"]):
        (f, i, o, g), c_new, h_new = gates_at(t, h), cells[t], hidden[t]
        np.multiply(f, c, c_new)
        np.multiply(i, g, small)
        np.add(c_new, small, c_new)
        c_norm = c_new
        if cell_norm is not None:
            cell_norm(c_new, small)
            c_norm = small
        np.tanh(c_norm, small)
        np.multiply(o, small, h_new)
        if mask is not None:
            masked = ~mask[t][:, None]
            np.copyto(h_new, h, where=masked)
            np.copyto(c_new, c, where=masked)
        h, c = h_new, c_new
    if attrs["remat"]:
        normalised = all_gates = None
    walked = recurrent.Walked(x, h0, w_x, w_h, mask, hidden, attrs["reverse"])
    return (hidden, h.copy(), c.copy()), _Saved(walked, c0, cells, bias, norms, attrs, terms, normalised, all_gates)


def _complete(saved: _Saved) -> _Saved:
    """The saved values with those that `remat` omits; one product per weight computes them from the states."""
    if saved.normalised is not None or saved.gates is not None:
        return saved
    x, w_x, w_h, terms = saved.walked.x, saved.walked.w_x, saved.walked.w_h, saved.terms
    shape = (*saved.cells.shape[:2], w_h.shape[1])
    before = recurrent.states_before(saved.walked).reshape(-1, len(w_h))
    rows = x.reshape(-1, x.shape[2])
    if saved.attrs["norm"] in NORMED_GATES:
        x_proj, h_proj = rows @ w_x, before @ w_h
        if saved.attrs["norm"] == "layer-theano":
            x_proj += saved.bias - saved.bias.mean()
        rstd_x, rstd_h = (recurrent.normalise_rows(a, saved.attrs["eps"]).reshape(*shape[:2], 1)
                          for a in (x_proj, h_proj))
        return saved._replace(normalised=recurrent.Normalised(x_proj.reshape(shape), h_proj.reshape(shape), rstd_x,
                                                              rstd_h))
    gates = rows @ (w_x * terms.gain_x)
    gates += before @ (w_h * terms.gain_h)
    gates += terms.biases
    recurrent.activate(gates, 3 * len(w_h))
    return saved._replace(gates=gates.reshape(shape))


class _Gradients(NamedTuple):
    """The results of the backward time loop: gradients of both products (T, B, 4 H), the first states and the norms."""

    x_proj: Array
    h_proj: Array
    h: Array
    c: Array
    biases: Array
    norms: dict[str, Array]


def _walk_back(saved: _Saved, gouts: tuple[Array | None, ...]) -> _Gradients:
    walked, c0, terms, norms, normalised = saved.walked, saved.c, saved.terms, saved.norms, saved.normalised
    steps, batch, hidden = walked.hidden.shape
    wide, small, dtype = (batch, 4 * hidden), (batch, hidden), c0.dtype
    cell_norm = CellNorm(norms, saved.attrs["eps"], c0) if "gain_c" in norms else None
    d_hidden, *d_last = gouts
    dh, dc = (np.zeros(small, dtype) if d is None else np.array(d) for d in d_last)
    d_x_proj = host.empty((steps, *wide), dtype)
    d_h_proj = d_x_proj if normalised is None else host.empty((steps, *wide), dtype)
    d_biases, d_gain_x, d_gain_h = np.zeros((3, 4 * hidden), dtype)
    d_gain_c, d_bias_c = np.zeros((2, hidden), dtype)
    gates_again, scratch, d_of_step = (host.empty(wide, dtype) for _ in range(3))
    tanh_c, narrow, ones = host.empty(small, dtype), host.empty(small, dtype), np.ones(batch, dtype)
    w_back = np.ascontiguousarray(walked.w_h.T)
    times = recurrent.order(steps, walked.reverse)
    for position in range(steps - 1, -1, -1):
        t = times[position]
        c_before = saved.cells[times[position - 1]] if position else c0
        if d_hidden is not None:
            np.add(dh, d_hidden[t], dh)
        aside = [] if walked.mask is None else recurrent.set_aside(walked.mask[t], dh, dc)
        if normalised is None:
            assert saved.gates is not None
            gates, d = saved.gates[t], d_x_proj[t]
        else:
            gates, d = gates_again, d_of_step
            recurrent.add_gates(normalised.xhat_x[t], normalised.xhat_h[t], terms, gates, scratch)
            recurrent.activate(gates, 3 * hidden)
        f, i, o, g = split_gates(gates)
        d_f, d_i, d_o, d_g = split_gates(d)
        rstd_c = None if cell_norm is None else cell_norm(saved.cells[t], tanh_c)
        np.tanh(saved.cells[t] if cell_norm is None else tanh_c, tanh_c)
        np.multiply(dh, tanh_c, d_o)
        d_c_norm = np.multiply(tanh_c, tanh_c, tanh_c)
        np.subtract(1.0, d_c_norm, d_c_norm)
        np.multiply(d_c_norm, dh, d_c_norm)
        np.multiply(d_c_norm, o, d_c_norm)
        if cell_norm is not None and rstd_c is not None:
            of_gain, of_bias = cell_norm.parameters(d_c_norm, narrow)
            d_gain_c += of_gain
            d_bias_c += of_bias
            cell_norm.input(d_c_norm, rstd_c, narrow)
        np.add(dc, d_c_norm, dc)
        np.multiply(dc, c_before, d_f)
        np.multiply(dc, g, d_i)
        np.multiply(dc, i, d_g)
        np.multiply(dc, f, dc)
        recurrent.slopes(gates, 3 * hidden, scratch)
        np.multiply(d, scratch, d)
        d_biases += ones @ d
        if normalised is not None:
            for xhat, rstd, gain, d_gain, d_proj in (
                    (normalised.xhat_x, normalised.rstd_x, norms["gain_x"], d_gain_x, d_x_proj),
                    (normalised.xhat_h, normalised.rstd_h, norms["gain_h"], d_gain_h, d_h_proj)):
                recurrent.norm_gradient(d, xhat[t], rstd[t], gain, _ALL_GATES, d_gain, d_proj[t], scratch, ones)
        np.matmul(d_h_proj[t], w_back, out=dh)
        if aside:
            np.add(dh, aside[0], dh)
            np.add(dc, aside[1], dc)
    return _Gradients(d_x_proj, d_h_proj, dh, dc, d_biases,
                      {"gain_x": d_gain_x, "bias_x": d_biases, "gain_h": d_gain_h, "bias_h": d_biases,
                       "gain_c": d_gain_c, "bias_c": d_bias_c})


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    gradients = _walk_back(_complete(saved), gouts)
    d_x, d_w_x, d_w_h = recurrent.product_gradients(saved.walked, gradients.x_proj, gradients.h_proj, needs[0])
    d_bias = gradients.biases
    if saved.attrs["norm"] in NORMED_GATES:  # remove the means that `centred` removed from the weights
        d_w_x, d_w_h = recurrent.centred(d_w_x), recurrent.centred(d_w_h)
        if saved.attrs["norm"] == "layer-theano":
            d_inner_bias = recurrent.column_sums(gradients.x_proj.reshape(-1, len(d_bias)))
            d_bias = d_bias + d_inner_bias - d_inner_bias.mean()
    return [d_x, gradients.h, gradients.c, d_w_x, d_w_h, d_bias, None,
            *(gradients.norms[name] for name in saved.norms)]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    lstm_cell.add(step_rule(), backend="numpy")
    pair = side_by_side(*ragged(_forward, _vjp, states=2), states=2)
    lstm.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
