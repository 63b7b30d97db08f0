"""The tanh RNN on the CPU: one product for all inputs, time steps in preallocated buffers, one product per weight.

Saved for the gradient, per time step and row: 2 H floats for `layer` (the normalised sum and the hidden state), H for
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
    walked: recurrent.Walked
    gain: Array | None
    xhat: Array | None
    """x_proj + h_proj after the norm: (T, B, H)."""
    rstd: Array | None
    """(T, B, 1)."""
    unmasked: Array
    """The hidden state of each time step before the mask: (T, B, H)."""


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norms: Array, **attrs: Any) -> tuple[tuple[Array, Array], _Saved]:
    h0, shape = h, (len(x), *h.shape)
    gain, norm_bias = norms if norms else (None, None)
    if gain is not None:  # the means of the products do not change the norm
        w_x, w_h = recurrent.centred(w_x), recurrent.centred(w_h)
    sums = recurrent.project_input(x, w_x)
    if bias is not None:
        sums += bias
    rstd = None if gain is None else host.empty((*shape[:2], 1), x.dtype)
    unmasked = host.empty(shape, x.dtype)
    hidden = unmasked if mask is None else host.empty(shape, x.dtype)
    h_proj = host.empty(h.shape, h.dtype)
    for t in recurrent.order(len(x), attrs["reverse"]):
        total, h_new = sums[t], unmasked[t]
        np.matmul(h, w_h, out=h_proj)
        np.add(total, h_proj, total)
        if rstd is None:
            np.tanh(total, h_new)
        else:
            rstd[t] = recurrent.normalise_rows(total, attrs["eps"])
            np.multiply(total, gain, h_new)
            np.add(h_new, norm_bias, h_new)
            np.tanh(h_new, h_new)
        if mask is not None:
            np.copyto(hidden[t], np.where(mask[t][:, None], h_new, h))
        h = hidden[t]
    walked = recurrent.Walked(x, h0, w_x, w_h, mask, hidden, attrs["reverse"])
    return (hidden, h.copy()), _Saved(walked, gain, None if gain is None else sums, rstd, unmasked)


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    d_hidden, d_last = gouts
    walked = saved.walked
    steps, _, hidden = walked.hidden.shape
    dh = np.zeros_like(walked.h) if d_last is None else np.array(d_last)
    d_normed, w_back = host.empty_like(walked.hidden), np.ascontiguousarray(walked.w_h.T)
    d_sums = d_normed if saved.gain is None else host.empty_like(d_normed)
    scratch = host.empty_like(walked.h)
    for t in reversed(recurrent.order(steps, walked.reverse)):
        if d_hidden is not None:
            np.add(dh, d_hidden[t], dh)
        aside = [] if walked.mask is None else recurrent.set_aside(walked.mask[t], dh)
        np.multiply(saved.unmasked[t], saved.unmasked[t], scratch)
        np.subtract(1.0, scratch, scratch)
        np.multiply(dh, scratch, d_normed[t])
        if saved.gain is not None and saved.xhat is not None and saved.rstd is not None:
            np.multiply(d_normed[t], saved.gain, d_sums[t])
            recurrent.normalise_rows_gradient(d_sums[t], saved.xhat[t], saved.rstd[t], scratch)
        np.matmul(d_sums[t], w_back, out=dh)
        for part in aside:
            dh += part
    d_x, d_w_x, d_w_h = recurrent.product_gradients(walked, d_sums, d_sums, needs[0])
    d_rows = d_normed.reshape(-1, hidden)
    d_bias, d_norms = recurrent.column_sums(d_rows), []
    if saved.xhat is not None:  # remove the means that `centred` removed from the weights
        d_w_x, d_w_h = recurrent.centred(d_w_x), recurrent.centred(d_w_h)
        d_norms = [recurrent.column_sums(d_rows * saved.xhat.reshape(d_rows.shape)), d_bias]
    return [d_x, dh, d_w_x, d_w_h, None if d_norms else d_bias, None, *d_norms]


def attach() -> None:
    """Add the rule to `rnn`."""
    pair = side_by_side(*ragged(_forward, _vjp, states=1), states=1)
    rnn.add(Rule("fused steps", *pair, recurrent.supports(_VARIANTS)), backend="numpy")
