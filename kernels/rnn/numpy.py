"""The tanh RNN on NumPy, from its equations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels.recurrent import numpy_walk
from duoln.kernels.recurrent.numpy_walk import Gradient, States
from duoln.kernels.recurrent.row_norm import Normed, norm_gradient, normalise
from duoln.ops import rnn


class _Kept(NamedTuple):
    norm: Normed | None
    h: Array
    """The hidden state after the time step, (B, H)."""


class _Rnn(NamedTuple):
    """The variants `none` and `layer`."""

    norm: str
    eps: float
    bias: Array | None
    norms: Mapping[str, Array]

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _Kept]:
        """The next state: tanh(x_proj + h_proj + bias), or tanh of the norm of the products' sum (eq. 4)."""
        gates, norm = x_proj + h_proj, None
        if self.norm == "layer":
            gates, norm = normalise(gates, self.norms["gain_h"], self.norms["bias_h"], self.eps)
        else:
            gates += self.bias
        h = np.tanh(gates)
        return (h,), _Kept(norm, h)

    def backward(self, kept: _Kept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        [dh] = d_states
        d = dh * (1 - kept.h * kept.h)
        if kept.norm is None:
            return Gradient(d, d, (np.zeros_like(dh),), {"bias": d.sum(axis=0)})
        d, d_gain, d_bias = norm_gradient(d, kept.norm)
        return Gradient(d, d, (np.zeros_like(dh),), {"gain_h": d_gain, "bias_h": d_bias})


def attach() -> None:
    """Add the rule to `rnn`."""
    rnn.add(numpy_walk.rule("rnn", _Rnn, ("none", "layer")), backend="numpy")
