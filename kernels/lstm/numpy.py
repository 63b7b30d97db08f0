"""The LSTM on NumPy, from its equations: over a sequence, and one time step after its products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.recurrent import numpy_walk
from duoln.kernels.recurrent.numpy_walk import Gradient, States, sigmoid
from duoln.kernels.recurrent.row_norm import Normed, norm_gradient, normalise
from duoln.kernels.recurrent.supports import supports
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")


class _Kept(NamedTuple):
    norm_x: Normed | None
    norm_h: Normed | None
    norm_c: Normed | None
    gates: tuple[Array, ...]
    """i, f, g, o, each (B, H)."""
    c: Array
    """The cell before the time step."""
    tanh_c: Array
    """tanh of the cell after the time step and its norm."""


class _Lstm(NamedTuple):
    """The variants `none`, `layer`, `layer-cell` and `layer-theano`."""

    norm: str
    eps: float
    bias: Array
    norms: Mapping[str, Array]

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _Kept]:
        """The next states: c = f c + i g and h = o tanh(c), with norms of both products and of the cell (eq. 20-22)."""
        norm_x = norm_h = norm_c = None
        if self.norm == "layer-theano":  # the bias is inside the input's norm, too
            x_proj = x_proj + self.bias
        if "gain_x" in self.norms:
            x_proj, norm_x = self._normalise(x_proj, "x")
            h_proj, norm_h = self._normalise(h_proj, "h")
        i, f, g, o = np.split(x_proj + h_proj + self.bias, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        before = states[1]
        c_norm = c = f * before + i * g
        if "gain_c" in self.norms:  # the next time step reads the cell before its norm
            c_norm, norm_c = self._normalise(c, "c")
        tanh_c = np.tanh(c_norm)
        return (o * tanh_c, c), _Kept(norm_x, norm_h, norm_c, (i, f, g, o), before, tanh_c)

    def backward(self, kept: _Kept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        (dh, dc), (i, f, g, o), parameters = d_states, kept.gates, {}
        d_c_norm = dh * o * (1 - kept.tanh_c * kept.tanh_c)
        if kept.norm_c is not None:
            d_c_norm, parameters["gain_c"], parameters["bias_c"] = norm_gradient(d_c_norm, kept.norm_c)
        dc = dc + d_c_norm
        d_gates = np.concatenate((dc * g * i * (1 - i), dc * kept.c * f * (1 - f), dc * i * (1 - g * g),
                                  dh * kept.tanh_c * o * (1 - o)), axis=1)
        d_x_proj = d_h_proj = d_gates
        parameters["bias"] = d_gates.sum(axis=0)
        if kept.norm_x is not None and kept.norm_h is not None:
            d_x_proj, parameters["gain_x"], parameters["bias_x"] = norm_gradient(d_gates, kept.norm_x)
            d_h_proj, parameters["gain_h"], parameters["bias_h"] = norm_gradient(d_gates, kept.norm_h)
        if self.norm == "layer-theano":
            parameters["bias"] += d_x_proj.sum(axis=0)
        return Gradient(d_x_proj, d_h_proj, (np.zeros_like(dh), dc * f), parameters)

    def _normalise(self, x: Array, name: str) -> tuple[Array, Normed]:
        return normalise(x, self.norms[f"gain_{name}"], self.norms[f"bias_{name}"], self.eps)


def _step(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str, eps: float,
          ) -> tuple[States, tuple[_Lstm, _Kept]]:
    cell = _Lstm(norm, eps, bias, dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True)))
    states, kept = cell.forward(x_proj, h_proj, (c, c))  # the hidden state before is read through h_proj alone
    return states, (cell, kept)


def _step_vjp(be: Backend, saved: tuple[_Lstm, _Kept], gouts: tuple[Array | None, ...],
              needs: Sequence[bool]) -> list[Array | None]:
    cell, kept = saved
    gradient = cell.backward(kept, tuple(np.zeros_like(kept.c) if d is None else d for d in gouts))
    return [gradient.x_proj, gradient.h_proj, gradient.states[1],
            *(gradient.parameters[name] for name in ("bias", *cell.norms))]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    lstm.add(numpy_walk.rule("lstm", _Lstm, _VARIANTS), backend="numpy")
    lstm_cell.add(Rule("fused step", _step, _step_vjp, supports(_VARIANTS)), backend="numpy")
