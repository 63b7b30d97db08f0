"""The recurrent operators on NumPy, written to be read: one product for all inputs, one time step after another, then
one product per weight.

These rules run where no compiler is found, and the compiled walks are tested against them. A cell computes a time step
between its products. A masked row keeps its states, and their gradients pass unchanged to the time step
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.recurrent.cells import Arrays, supports
from duoln.ops.recurrent.variants import CELLS, norm_shapes

States = tuple[Array, ...]


class Gradient(NamedTuple):
    """The gradients of one time step."""

    x_proj: Array
    h_proj: Array
    states: States
    """Those of the states before the time step, without the part that comes through `h_proj`."""
    parameters: dict[str, Array]
    """Those of the bias, by the name "bias" if there is one, and of the norms, summed over the rows."""


class Normed(NamedTuple):
    """The values of a norm that its gradient needs."""

    xhat: Array
    """The normalised rows, before gain and bias: (B, n)."""
    rstd: Array
    """(B, 1)."""
    gain: Array


def sigmoid(x: Array) -> Array:
    """The logistic function e^x / (1 + e^x), which keeps its digits where it is small."""
    power: Array = np.exp(np.minimum(x, 88.0))  # the power of a larger value overflows
    return power / (power + 1.0)


def normalise(x: Array, gain: Array, bias: Array, eps: float) -> tuple[Array, Normed]:
    """Layer norm of rows, `gain * xhat + bias`, and what the gradient needs.

    Shape:
        x (B, n), gain and bias (n,) -> (B, n).
    """
    centred = x - x.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=1, keepdims=True)  # the offset that the rounding of a large mean leaves
    rstd = 1 / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + eps)
    xhat = centred * rstd
    return xhat * gain + bias, Normed(xhat, rstd, gain)


def norm_gradient(d: Array, normed: Normed) -> tuple[Array, Array, Array]:
    """The gradients of x, gain and bias from the gradient after the norm."""
    xhat, rstd, gain = normed
    d_xhat = d * gain
    along = np.mean(d_xhat * xhat, axis=1, keepdims=True)
    d_x = rstd * (d_xhat - d_xhat.mean(axis=1, keepdims=True) - along * xhat)
    return d_x, (d * xhat).sum(axis=0), d.sum(axis=0)


@dataclass(frozen=True)
class Cell:
    """The equations of a cell's variant, with the parameters that they read.

    `forward(x_proj, h_proj, states)` gives the next states and what the gradient keeps; `backward(kept, d_states)` the
    gradients of a time step from those of the next states.

    Shape:
        x_proj = x W_x and h_proj = h W_h (B, gates * H), states (B, H) -> (B, H) each.
    """

    name: ClassVar[str]
    norm: str
    eps: float
    bias: Array | None
    norms: Mapping[str, Array]

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, Any]:
        """The next states, and what the gradient keeps."""
        raise NotImplementedError

    def backward(self, kept: Any, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        raise NotImplementedError

    def _normalise(self, x: Array, name: str) -> tuple[Array, list[Normed]]:
        """The values after their norms, one for each part of the gates; as they are where the variant has none."""
        if f"gain_{name}" not in self.norms:
            return x, []
        pieces = zip(*(self._parts(a, name) for a in (x, self.norms[f"gain_{name}"], self.norms[f"bias_{name}"])),
                     strict=True)
        y, kept = zip(*(normalise(part, gain, bias, self.eps) for part, gain, bias in pieces), strict=True)
        return _joined(y), list(kept)

    def _norm_gradients(self, d: Array, kept: list[Normed], name: str) -> tuple[Array, dict[str, Array]]:
        """The gradients of the values before their norms, and of the norms' parameters by name."""
        if not kept:
            return d, {}
        of_parts = [norm_gradient(part, norm) for part, norm in zip(self._parts(d, name), kept, strict=True)]
        d_x, d_gain, d_bias = (_joined(pieces) for pieces in zip(*of_parts, strict=True))
        return d_x, {f"gain_{name}": d_gain, f"bias_{name}": d_bias}

    def _parts(self, x: Array, name: str) -> list[Array]:
        """The columns that share a norm; those of the LSTM's cell, c, share one."""
        cell = CELLS[self.name]
        if name == "c" or len(cell.parts) == 1:
            return [x]
        hidden = x.shape[-1] // cell.gates
        return np.split(x, [gates * hidden for gates in accumulate(cell.parts[:-1])], axis=-1)


def _joined(parts: tuple[Array, ...]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class _RnnKept(NamedTuple):
    norms: list[Normed]
    h: Array
    """The hidden state after the time step, (B, H)."""


class Rnn(Cell):
    """The variants `none` and `layer` of the tanh RNN."""

    name = "rnn"

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _RnnKept]:
        """The next state: tanh(x_proj + h_proj + bias), or tanh of the norm of the products' sum (eq. 4)."""
        gates, norms = self._normalise(x_proj + h_proj, "h")
        if self.bias is not None:
            gates += self.bias
        h = np.tanh(gates)
        return (h,), _RnnKept(norms, h)

    def backward(self, kept: _RnnKept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        [dh] = d_states
        d_gates = dh * (1 - kept.h * kept.h)
        d, parameters = self._norm_gradients(d_gates, kept.norms, "h")
        of_bias = {} if self.bias is None else {"bias": d_gates.sum(axis=0)}
        return Gradient(d, d, (np.zeros_like(dh),), {**of_bias, **parameters})


class _LstmKept(NamedTuple):
    norms_x: list[Normed]
    norms_h: list[Normed]
    norms_c: list[Normed]
    gates: tuple[Array, ...]
    """i, f, g, o, each (B, H)."""
    c: Array
    """The cell before the time step."""
    tanh_c: Array
    """tanh of the cell after the time step and its norm."""


class Lstm(Cell):
    """The variants `none`, `layer`, `layer-cell` and `layer-theano` of the LSTM."""

    name = "lstm"

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _LstmKept]:
        """The next states: c = f c + i g and h = o tanh(c), with norms of both products and of the cell (eq. 20-22)."""
        if self.norm == "layer-theano":  # the bias is inside the input's norm, too
            x_proj = x_proj + self.bias
        x_gates, norms_x = self._normalise(x_proj, "x")
        h_gates, norms_h = self._normalise(h_proj, "h")
        i, f, g, o = np.split(x_gates + h_gates + self.bias, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        before = states[1]
        c = f * before + i * g
        c_norm, norms_c = self._normalise(c, "c")  # the next time step reads the cell before its norm
        tanh_c = np.tanh(c_norm)
        return (o * tanh_c, c), _LstmKept(norms_x, norms_h, norms_c, (i, f, g, o), before, tanh_c)

    def backward(self, kept: _LstmKept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        (dh, dc), (i, f, g, o) = d_states, kept.gates
        d_c_norm, of_c = self._norm_gradients(dh * o * (1 - kept.tanh_c * kept.tanh_c), kept.norms_c, "c")
        dc = dc + d_c_norm
        d_gates = np.concatenate((dc * g * i * (1 - i), dc * kept.c * f * (1 - f), dc * i * (1 - g * g),
                                  dh * kept.tanh_c * o * (1 - o)), axis=1)
        d_x_proj, of_x = self._norm_gradients(d_gates, kept.norms_x, "x")
        d_h_proj, of_h = self._norm_gradients(d_gates, kept.norms_h, "h")
        d_bias = d_gates.sum(axis=0)
        if self.norm == "layer-theano":
            d_bias += d_x_proj.sum(axis=0)
        return Gradient(d_x_proj, d_h_proj, (np.zeros_like(dh), dc * f), {"bias": d_bias, **of_x, **of_h, **of_c})


class _GruKept(NamedTuple):
    norms_x: list[Normed]
    norms_h: list[Normed]
    gates: tuple[Array, ...]
    """z, r, n, each (B, H)."""
    h_n: Array
    """The product with the state, for n, before r multiplies it."""
    h: Array
    """The hidden state before the time step."""


class Gru(Cell):
    """The variants `none`, `layer` and `layer-theano` of the GRU."""

    name = "gru"

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, _GruKept]:
        """The next state: h <- (1 - z) h + z tanh(x_n + r h_n), with norms of both products (eq. 26-28)."""
        [h] = states
        size = h.shape[1]
        x_gates, norms_x = self._normalise(x_proj if self.bias is None else x_proj + self.bias, "x")
        h_gates, norms_h = self._normalise(h_proj, "h")
        z, r = np.split(sigmoid(x_gates[:, :2 * size] + h_gates[:, :2 * size]), 2, axis=1)
        h_n = h_gates[:, 2 * size:]
        n = np.tanh(x_gates[:, 2 * size:] + r * h_n)
        return ((1 - z) * h + z * n,), _GruKept(norms_x, norms_h, (z, r, n), h_n, h)

    def backward(self, kept: _GruKept, d_states: States) -> Gradient:
        """The gradients of `forward`."""
        [dh], (z, r, n) = d_states, kept.gates
        d_n = dh * z * (1 - n * n)
        d_z, d_r = dh * (n - kept.h) * z * (1 - z), d_n * kept.h_n * r * (1 - r)
        d_x_proj, of_x = self._norm_gradients(np.concatenate((d_z, d_r, d_n), axis=1), kept.norms_x, "x")
        d_h_proj, of_h = self._norm_gradients(np.concatenate((d_z, d_r, d_n * r), axis=1), kept.norms_h, "h")
        of_bias = {} if self.bias is None else {"bias": d_x_proj.sum(axis=0)}
        return Gradient(d_x_proj, d_h_proj, (dh * (1 - z),), {**of_bias, **of_x, **of_h})


class _Saved(NamedTuple):
    cell: Cell
    kept: list[Any]
    """The values that each time step keeps, in the order of the walk."""
    x: Array
    before: Array
    """The hidden state before each time step, (T, B, H)."""
    w_x: Array
    w_h: Array
    mask: Array | None
    times: Sequence[int]
    limit: float | None
    """The bound on the gradients of the states before a time step."""


def _rule(kind: type[Cell]) -> Rule:
    """The rule of a cell over a sequence."""

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states, w_x, w_h, bias, mask, norms = Arrays.of(kind.name, attrs["norm"], arrays)
        cell = kind(attrs["norm"], attrs["eps"], bias, norms)
        times = range(len(x) - 1, -1, -1) if attrs["reverse"] else range(len(x))
        if mask is not None:
            x = np.where(mask[..., None], x, x.dtype.type(0))  # padding may be infinite, and its gradient would be NaN
        x_proj = x @ w_x
        before, hidden = np.empty((2, len(x), *states[0].shape), x.dtype)
        kept = []
        for t in times:
            before[t] = states[0]
            new, of_step = cell.forward(x_proj[t], states[0] @ w_h, states)
            states = new if mask is None else _select_rows(mask[t], new, states)
            hidden[t] = states[0]
            kept.append(of_step)
        return (hidden, *states), _Saved(cell, kept, x, before, w_x, w_h, mask, times, attrs["gradient_limit"])

    return Rule("fused steps", forward, _vjp, supports(kind.name))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    d_hidden, *d_last = gouts
    zeros = np.zeros_like(saved.before[0])
    d_states = tuple(zeros if d is None else d for d in d_last)
    no_states = (zeros,) * len(d_states)
    wide = (*saved.before.shape[:2], saved.w_h.shape[1])
    d_x_proj, d_h_proj = np.empty((2, *wide), zeros.dtype)
    totals: dict[str, Array] = {}
    for t, kept in zip(reversed(saved.times), reversed(saved.kept), strict=True):
        if d_hidden is not None:
            d_states = (d_states[0] + d_hidden[t], *d_states[1:])
        mask = None if saved.mask is None else saved.mask[t]
        gradient = saved.cell.backward(kept, d_states if mask is None else _select_rows(mask, d_states, no_states))
        d_x_proj[t], d_h_proj[t] = gradient.x_proj, gradient.h_proj
        d_before = (gradient.states[0] + gradient.h_proj @ saved.w_h.T, *gradient.states[1:])
        if saved.limit is not None:
            d_before = tuple(np.clip(d, -saved.limit, saved.limit) for d in d_before)
        d_states = d_before if mask is None else _select_rows(mask, d_before, d_states)
        for name, d in gradient.parameters.items():
            totals[name] = totals[name] + d if name in totals else d
    d_x = d_x_proj @ saved.w_x.T if needs[0] else None
    if d_x is not None and saved.mask is not None:
        d_x = np.where(saved.mask[..., None], d_x, d_x.dtype.type(0))
    return [d_x, *d_states, _weight_gradient(saved.x, d_x_proj), _weight_gradient(saved.before, d_h_proj),
            totals.get("bias"), None, *(totals[name] for name in saved.cell.norms)]


def _select_rows(mask: Array, of_real: States, of_masked: States) -> States:
    """The rows of the first arrays where the mask (B,) is True, those of the second where it is False."""
    return tuple(np.where(mask[:, None], a, b) for a, b in zip(of_real, of_masked, strict=True))


def _weight_gradient(inputs: Array, d_products: Array) -> Array:
    """The gradient of a weight that multiplies all time steps and rows: (T, B, n) and (T, B, m) to (n, m)."""
    return inputs.reshape(-1, inputs.shape[2]).T @ d_products.reshape(-1, d_products.shape[2])


def _cell_step(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
               eps: float) -> tuple[States, tuple[Cell, Any]]:
    """One time step of an LSTM after its products."""
    cell = Lstm(norm, eps, bias, dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True)))
    states, kept = cell.forward(x_proj, h_proj, (c, c))  # the hidden state before is read through h_proj alone
    return states, (cell, kept)


def _cell_step_vjp(be: Backend, saved: tuple[Cell, Any], gouts: tuple[Array | None, ...],
                   needs: Sequence[bool]) -> list[Array | None]:
    cell, kept = saved
    gradient = cell.backward(kept, tuple(np.zeros_like(kept.c) if d is None else d for d in gouts))
    return [gradient.x_proj, gradient.h_proj, gradient.states[1],
            *(gradient.parameters[name] for name in ("bias", *cell.norms))]


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`."""
    for operator, kind in ((ops.rnn, Rnn), (ops.lstm, Lstm), (ops.gru, Gru)):
        operator.add(_rule(kind), backend="numpy")
    ops.lstm_cell.add(Rule("fused step", _cell_step, _cell_step_vjp, supports("lstm")), backend="numpy")
