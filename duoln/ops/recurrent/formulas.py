"""What each cell computes in one step, written once from the equations, in operators on tensors.

The input's side `x` of a step is what `input_side` made of all steps at once, `recurrent` is the product h W_h,
and `n` holds the normalisation parameters by name (see `variants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duoln.core import Tensor
from duoln.ops.elementwise import sigmoid, tanh
from duoln.ops.index import getitem
from duoln.ops.norm import EpsilonPlace, batch_norm, layer_norm
from duoln.ops.shape import concat, split


class Settings(NamedTuple):
    """The attributes that all recurrent operators have."""

    norm: str
    eps: float
    eps_place: EpsilonPlace


Norms = Mapping[str, Tensor]


def _ln(x: Tensor, n: Norms, side: str, s: Settings) -> Tensor:
    return layer_norm(x, n[f"gain_{side}"], n[f"bias_{side}"], eps=s.eps, eps_place=s.eps_place)


def _bn(x: Tensor, gain: Tensor, s: Settings) -> Tensor:
    return batch_norm(x, gain, eps=s.eps)[0]


def _parts(x: Tensor, gates: int, first: int) -> tuple[Tensor, Tensor]:
    """The first gates of a stack, and the rest."""
    cut = x.shape[-1] // gates * first
    return getitem(x, key=(..., slice(0, cut))), getitem(x, key=(..., slice(cut, None)))


def _in_parts(x: Tensor, n: Norms, side: str, s: Settings) -> Tensor:
    """A GRU's norms: one over the two gates together, one over the candidate (eq. 26 and 27)."""
    pieces = zip(_parts(x, 3, 2), _parts(n[f"gain_{side}"], 3, 2), _parts(n[f"bias_{side}"], 3, 2), strict=True)
    return concat(*(layer_norm(p, g, b, eps=s.eps, eps_place=s.eps_place) for p, g, b in pieces), axis=-1)


def _each_gate(x: Tensor, gates: int, n: Norms, s: Settings) -> list[Tensor]:
    pieces = zip(split(x, gates), split(n["gain_h"], gates), split(n["bias_h"], gates), strict=True)
    return [layer_norm(p, g, b, eps=s.eps, eps_place=s.eps_place) for p, g, b in pieces]


def input_side(cell: str, xw: Tensor, bias: Tensor | None, n: Norms, s: Settings) -> Tensor:
    """All that does not depend on the state, for one step or for all of them: x W, normalised, with its biases.

    Batch norm's statistics belong to a time step, so it is left to the step.
    """
    if s.norm == "layer-theano":
        assert bias is not None
        inner = xw + bias
        y = _in_parts(inner, n, "x", s) if cell == "gru" else _ln(inner, n, "x", s)
        return y if cell == "gru" else y + bias
    if s.norm == "layer" and cell != "rnn":
        y = _in_parts(xw, n, "x", s) if cell == "gru" else _ln(xw, n, "x", s)
        return y if bias is None else y + bias
    if s.norm == "batch" or bias is None:
        return xw
    return xw + bias


def next_states(cell: str, x: Tensor, recurrent: Tensor, states: tuple[Tensor, ...], bias: Tensor | None, n: Norms,
                s: Settings) -> tuple[Tensor, ...]:
    """The next states of any cell: hidden state, and cell if it has one."""
    if cell == "lstm":
        return lstm_cell(x, recurrent, states[1], bias, n, s)
    return (gru_cell(x, recurrent, states[0], bias, n, s) if cell == "gru" else rnn_cell(x, recurrent, bias, n, s),)


def rnn_cell(x: Tensor, recurrent: Tensor, bias: Tensor | None, n: Norms, s: Settings) -> Tensor:
    """The next hidden state of an RNN: tanh of eq. 4."""
    if s.norm in ("layer", "layer-per-gate"):
        return tanh(_ln(x + recurrent, n, "h", s))
    if s.norm == "layer-theano":
        return tanh(x + _ln(recurrent, n, "h", s))
    if s.norm == "batch":
        assert bias is not None
        return tanh(_bn(x, n["gain_x"], s) + _bn(recurrent, n["gain_h"], s) + bias)
    return tanh(x + recurrent)


def lstm_cell(x: Tensor, recurrent: Tensor, c: Tensor, bias: Tensor | None, n: Norms, s: Settings,
              ) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM (eq. 20-22); gates are forget, input, output, candidate."""
    if s.norm == "layer-per-gate":
        forget, into, out, candidate = _each_gate(x + recurrent, 4, n, s)
        c = _ln(sigmoid(forget) * c + sigmoid(into) * tanh(candidate), n, "c", s)
        return sigmoid(out) * tanh(c), c
    if s.norm in ("layer", "layer-theano"):
        gates = x + _ln(recurrent, n, "h", s)
    elif s.norm == "batch":
        assert bias is not None
        gates = _bn(x, n["gain_x"], s) + _bn(recurrent, n["gain_h"], s) + bias
    else:
        gates = x + recurrent
    forget, into, out, candidate = split(gates, 4)
    c = sigmoid(forget) * c + sigmoid(into) * tanh(candidate)
    shown = c
    if s.norm in ("layer", "layer-theano", "layer-cell"):
        shown = _ln(c, n, "c", s)  # the carried cell stays as it is
    elif s.norm == "batch":
        shown = _bn(c, n["gain_c"], s) + n["bias_c"]
    return sigmoid(out) * tanh(shown), c


def gru_cell(x: Tensor, recurrent: Tensor, h: Tensor, bias: Tensor | None, n: Norms, s: Settings) -> Tensor:
    """The next hidden state of a GRU (eq. 26-28); gates are update, reset, candidate.

    h <- (1 - z) h + z tanh(x + r * (h U)): the reset gate acts after the product with h, as in eq. 27.
    """
    if s.norm in ("layer", "layer-theano"):
        recurrent = _in_parts(recurrent, n, "h", s)
    elif s.norm == "batch":
        assert bias is not None
        x = _bn(x, n["gain_x"], s) + bias
        recurrent = _bn(recurrent, n["gain_h"], s)
    (x_gates, x_new), (h_gates, h_new) = _parts(x, 3, 2), _parts(recurrent, 3, 2)
    if s.norm == "layer-per-gate":
        gain, bias_h = _parts(n["gain_h"], 3, 2), _parts(n["bias_h"], 3, 2)
        gates = _each_gate(x_gates + h_gates, 2, {"gain_h": gain[0], "bias_h": bias_h[0]}, s)
        z, r = sigmoid(gates[0]), sigmoid(gates[1])
        new = tanh(layer_norm(x_new + r * h_new, gain[1], bias_h[1], eps=s.eps, eps_place=s.eps_place))
    else:
        z, r = split(sigmoid(x_gates + h_gates), 2)
        new = tanh(x_new + r * h_new)
    return (1.0 - z) * h + z * new
