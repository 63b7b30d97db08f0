"""The GRU on NumPy, from its equations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels.recurrent import numpy_walk
from duoln.kernels.recurrent.numpy_walk import Gradient, States, sigmoid
from duoln.kernels.recurrent.row_norm import Normed, norm_gradient, normalise
from duoln.ops import gru


class _Kept(NamedTuple):
    norms_x: list[Normed]
    """Of z and r together, and of n; empty without norms."""
    norms_h: list[Normed]
    gates: tuple[Array, ...]
    """z, r, n, each (B, H)."""
    h_n: Array
    """What the state gives n, before r multiplies it."""
    h: Array
    """The hidden state before the time step."""


class _Gru(NamedTuple):
    """The variants `none`, `layer` and `layer-theano`."""

    norm: str
    eps: float
    bias: Array | None
    norms: Mapping[str, Array]

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _Kept]:
        """The next state: h <- (1 - z) h + z tanh(x_n + r h_n), with norms of both products (eq. 26-28)."""
        [h] = states
        size = h.shape[1]
        x_gates = x_proj if self.bias is None else x_proj + self.bias
        x_gates, norms_x = self._normalise(x_gates, "x")
        h_gates, norms_h = self._normalise(h_proj, "h")
        z, r = np.split(sigmoid(x_gates[:, :2 * size] + h_gates[:, :2 * size]), 2, axis=1)
        h_n = h_gates[:, 2 * size:]
        n = np.tanh(x_gates[:, 2 * size:] + r * h_n)
        return ((1 - z) * h + z * n,), _Kept(norms_x, norms_h, (z, r, n), h_n, h)

    def backward(self, kept: _Kept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        [dh], (z, r, n) = d_states, kept.gates
        d_n = dh * z * (1 - n * n)
        d_z, d_r = dh * (n - kept.h) * z * (1 - z), d_n * kept.h_n * r * (1 - r)
        d_x_proj, of_x = _norm_gradients(np.concatenate((d_z, d_r, d_n), axis=1), kept.norms_x, "x")
        d_h_proj, of_h = _norm_gradients(np.concatenate((d_z, d_r, d_n * r), axis=1), kept.norms_h, "h")
        of_bias = {} if self.bias is None else {"bias": d_x_proj.sum(axis=0)}
        return Gradient(d_x_proj, d_h_proj, (dh * (1 - z),), {**of_bias, **of_x, **of_h})

    def _normalise(self, x: Array, name: str) -> tuple[Array, list[Normed]]:
        """The gates after a norm over z and r together and one over n; as they are without norms."""
        if not self.norms:
            return x, []
        parts = zip(*(_parts(a) for a in (x, self.norms[f"gain_{name}"], self.norms[f"bias_{name}"])), strict=True)
        gates, norms = zip(*(normalise(part, gain, bias, self.eps) for part, gain, bias in parts), strict=True)
        return np.concatenate(gates, axis=1), list(norms)


def _parts(x: Array) -> tuple[Array, Array]:
    """The columns of z and r, and those of n."""
    cut = x.shape[-1] * 2 // 3
    return x[..., :cut], x[..., cut:]


def _norm_gradients(d: Array, norms: list[Normed], name: str) -> tuple[Array, dict[str, Array]]:
    """The gradients of a product and of its norms' parameters, from that of the gates."""
    if not norms:
        return d, {}
    of_parts = [norm_gradient(part, norm) for part, norm in zip(_parts(d), norms, strict=True)]
    d_proj, d_gain, d_bias = (np.concatenate(pieces, axis=-1) for pieces in zip(*of_parts, strict=True))
    return d_proj, {f"gain_{name}": d_gain, f"bias_{name}": d_bias}


def attach() -> None:
    """Add the rule to `gru`."""
    gru.add(numpy_walk.rule("gru", _Gru, ("none", "layer", "layer-theano")), backend="numpy")
