"""The tanh RNN on the CPU: one product for all inputs, a step in preallocated buffers, one product per weight after.

Saved for the gradient, per step and row: 2 H floats for `layer` (the normalised sum and the hidden state), H for
`none`.
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
from duoln.ops import rnn

_VARIANTS = ("none", "layer")


class _Saved(NamedTuple):
    x: Array
    first: Array
    weights: tuple[Array, Array]
    mask: Array | None
    gain: Array | None
    reverse: bool
    normal: Array | None
    """The normalised sum of both sides: (T, B, H)."""
    factors: Array | None
    """One over its deviation: (T, B, 1)."""
    shown: Array
    """tanh of each step, before the mask: (T, B, H)."""
    hidden: Array



def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norms: Array, **attrs: Any) -> tuple[tuple[Array, Array], _Saved]:
    steps, batch, _ = x.shape
    first = h
    gain, norm_bias = norms if norms else (None, None)
    if gain is not None:  # the norm sees neither side's mean
        w_x, w_h = recurrent.centred(w_x), recurrent.centred(w_h)
    sums = recurrent.input_side(x, w_x)
    if bias is not None:
        sums += bias
    factors = None if gain is None else host.empty((steps, batch, 1), x.dtype)
    shown = host.empty((steps, *h.shape), x.dtype)
    outs = shown if mask is None else host.empty_like(shown)
    product = host.empty_like(h)
    for t in recurrent.order(steps, attrs["reverse"]):
        np.matmul(h, w_h, out=product)
        np.add(sums[t], product, sums[t])
        if factors is None:
            np.tanh(sums[t], shown[t])
        else:
            factors[t] = recurrent.scale_rows(sums[t], attrs["eps"])
            np.multiply(sums[t], gain, shown[t])
            np.add(shown[t], norm_bias, shown[t])
            np.tanh(shown[t], shown[t])
        if mask is not None:
            np.copyto(outs[t], np.where(mask[t][:, None], shown[t], h))
        h = outs[t]
    saved = _Saved(x, first, (w_x, w_h), mask, gain, attrs["reverse"], None if gain is None else sums, factors, shown,
                   outs)
    return (outs, h.copy()), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    g_out, g_h = gouts
    w_x, w_h = saved.weights
    steps, _, hidden = saved.hidden.shape
    dh = np.zeros_like(saved.first) if g_h is None else np.array(g_h)
    d_shown, w_back = host.empty_like(saved.hidden), np.ascontiguousarray(w_h.T)
    d_sums = d_shown if saved.gain is None else host.empty_like(d_shown)
    scratch = host.empty_like(saved.first)
    for t in reversed(recurrent.order(steps, saved.reverse)):
        if g_out is not None:
            np.add(dh, g_out[t], dh)
        held: Array | None = None
        if saved.mask is not None:
            still = ~saved.mask[t][:, None]
            held = np.where(still, dh, 0)
            np.copyto(dh, 0, where=still)
        np.multiply(saved.shown[t], saved.shown[t], scratch)
        np.subtract(1.0, scratch, scratch)
        np.multiply(dh, scratch, d_shown[t])
        if saved.gain is not None and saved.normal is not None and saved.factors is not None:
            np.multiply(d_shown[t], saved.gain, d_sums[t])
            recurrent.scale_rows_gradient(d_sums[t], saved.normal[t], saved.factors[t], scratch)
        np.matmul(d_sums[t], w_back, out=dh)
        if held is not None:
            dh += held
    d, d_sum = d_shown.reshape(-1, hidden), d_sums.reshape(-1, hidden)
    before = recurrent.states_before(saved.hidden, saved.first, saved.reverse).reshape(d.shape)
    d_w_h, d_w_x = before.T @ d_sum, saved.x.reshape(len(d), -1).T @ d_sum
    d_bias, d_norms = recurrent.column_sums(d), []
    if saved.normal is not None:  # the means that `centred` took out
        d_w_h, d_w_x = recurrent.centred(d_w_h), recurrent.centred(d_w_x)
        d_norms = [recurrent.column_sums(d * saved.normal.reshape(d.shape)), d_bias]
    d_x = (d_sum @ w_x.T).reshape(saved.x.shape) if needs[0] else None
    return [d_x, dh, d_w_x, d_w_h, None if d_norms else d_bias, None, *d_norms]


def attach() -> None:
    """Add the rule to `rnn`."""
    pair = side_by_side(*ragged(_forward, _vjp, states=1), states=1)
    rnn.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
