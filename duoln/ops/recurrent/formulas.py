"""The equations of each cell for one time step, written once, in operators on tensors.

`x_gates` is what the input gives the gates of a time step: `input_to_gates` makes it from `x_proj` = x W_x for all time
steps at once. `h_proj` is h W_h. `norms` holds the parameters of the norms by name (see `variants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duoln.core import Tensor
from duoln.ops.elementwise import sigmoid, tanh
from duoln.ops.index import getitem
from duoln.ops.norm import batch_norm, by_statistics, layer_norm, rms_norm
from duoln.ops.recurrent.variants import CELLS, COMPARED
from duoln.ops.reduce import mean, var
from duoln.ops.shape import concat, split


class Settings(NamedTuple):
    """The attributes that all recurrent operators have."""

    norm: str
    eps: float


Norms = Mapping[str, Tensor]


def _ln(x: Tensor, norms: Norms, name: str, s: Settings) -> Tensor:
    """Layer norm, or what stands in its place."""
    if s.norm == "layer-plain":
        return layer_norm(x, eps=s.eps)
    gain = norms[f"gain_{name}"]
    if s.norm == "rms":
        return rms_norm(x, gain, eps=s.eps)
    bias = norms[f"bias_{name}"]
    if s.norm == "tanh":
        return tanh(x * norms[f"alpha_{name}"]) * gain + bias
    if s.norm == "layer-detached":
        return by_statistics(x, gain, bias, mean(x, axis=-1, keepdims=True), var(x, axis=-1, keepdims=True), s.eps)
    return layer_norm(x, gain, bias, eps=s.eps)


def _bn(x: Tensor, norms: Norms, name: str, s: Settings) -> Tensor:
    """By the statistics of a population where `norms` has them, else by those of the batch."""
    gain, mean = norms[f"gain_{name}"], norms.get(f"mean_{name}")
    if mean is None:
        return batch_norm(x, gain, eps=s.eps)[0]
    return by_statistics(x, gain, None, mean, norms[f"variance_{name}"], s.eps)


def _split_gates(x: Tensor, gates: int, first: int) -> tuple[Tensor, Tensor]:
    """The first gates along the last axis, and the rest."""
    cut = x.shape[-1] // gates * first
    return getitem(x, key=(..., slice(0, cut))), getitem(x, key=(..., slice(cut, None)))


def _gates_ln(cell: str, x: Tensor, norms: Norms, name: str, s: Settings) -> Tensor:
    """The norms of a product: one over all gates; a GRU has one over z and r together, and one over n (eq. 26, 27)."""
    if len(CELLS[cell].parts) == 1:
        return _ln(x, norms, name, s)
    pieces = zip(*[_split_gates(a, 3, 2) for a in (x, norms[f"gain_{name}"], norms[f"bias_{name}"])], strict=True)
    return concat(*(layer_norm(part, g, b, eps=s.eps) for part, g, b in pieces), axis=-1)


def _each_gate(x: Tensor, gates: int, gain: Tensor, bias: Tensor, s: Settings) -> list[Tensor]:
    pieces = zip(*(split(each, gates, axis=-1) for each in (x, gain, bias)), strict=True)
    return [layer_norm(part, g, b, eps=s.eps) for part, g, b in pieces]


def input_to_gates(cell: str, x_proj: Tensor, bias: Tensor | None, norms: Norms, s: Settings) -> Tensor:
    """`x_gates`, from x W_x of one time step or of all: with the norms and biases that do not depend on the state.

    Batch norm's statistics belong to a time step, so `next_states` applies it.
    """
    is_normed = "bias_x" in norms or s.norm in COMPARED
    if s.norm == "batch" or (bias is None and not is_normed):
        return x_proj
    variant = CELLS[cell].variants[s.norm]
    x_gates = x_proj + bias if variant.inner_bias and bias is not None else x_proj
    if is_normed:
        x_gates = _gates_ln(cell, x_gates, norms, "x", s)
    return x_gates + bias if variant.outer_bias and bias is not None else x_gates


def next_states(cell: str, x_gates: Tensor, h_proj: Tensor, states: tuple[Tensor, ...], bias: Tensor | None,
                norms: Norms, s: Settings) -> tuple[Tensor, ...]:
    """The next states of any cell: the hidden state, and an LSTM's cell."""
    if cell == "lstm":
        return lstm_cell(x_gates, h_proj, states[1], bias, norms, s)
    if cell == "gru":
        return (gru_cell(x_gates, h_proj, states[0], bias, norms, s),)
    return (rnn_cell(x_gates, h_proj, bias, norms, s),)


def rnn_cell(x_gates: Tensor, h_proj: Tensor, bias: Tensor | None, norms: Norms, s: Settings) -> Tensor:
    """The next hidden state of an RNN: tanh of eq. 4."""
    if s.norm in ("layer", "layer-per-gate"):
        return tanh(_ln(x_gates + h_proj, norms, "h", s))
    if s.norm == "layer-theano":
        return tanh(x_gates + _ln(h_proj, norms, "h", s))
    if s.norm == "batch":
        assert bias is not None
        return tanh(_bn(x_gates, norms, "x", s) + _bn(h_proj, norms, "h", s) + bias)
    return tanh(x_gates + h_proj)


def lstm_cell(x_gates: Tensor, h_proj: Tensor, c: Tensor, bias: Tensor | None, norms: Norms, s: Settings,
              ) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM (eq. 20-22)."""
    if s.norm == "layer-per-gate":
        i, f, g, o = _each_gate(x_gates + h_proj, 4, norms["gain_h"], norms["bias_h"], s)
        c = _ln(sigmoid(f) * c + sigmoid(i) * tanh(g), norms, "c", s)
        return sigmoid(o) * tanh(c), c
    if s.norm in ("layer", "layer-theano", *COMPARED):
        gates = x_gates + _ln(h_proj, norms, "h", s)
    elif s.norm == "batch":
        assert bias is not None
        gates = _bn(x_gates, norms, "x", s) + _bn(h_proj, norms, "h", s) + bias
    else:
        gates = x_gates + h_proj
    i, f, g, o = split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    c_norm = c
    if s.norm in ("layer", "layer-theano", "layer-cell", *COMPARED):
        c_norm = _ln(c, norms, "c", s)  # the cell that the next time step reads is c itself
    elif s.norm == "batch":
        c_norm = _bn(c, norms, "c", s) + norms["bias_c"]
    return sigmoid(o) * tanh(c_norm), c


def gru_cell(x_gates: Tensor, h_proj: Tensor, h: Tensor, bias: Tensor | None, norms: Norms, s: Settings) -> Tensor:
    """The next hidden state of a GRU (eq. 26-28).

    h <- (1 - z) h + z tanh(x_n + r * h_n): the reset gate r multiplies what the product with h gave, as in eq. 27; with
    "recurrent-bias" h_n has a bias of its own, which r multiplies too.
    """
    h_gates = h_proj
    if s.norm in ("layer", "layer-theano"):
        h_gates = _gates_ln("gru", h_proj, norms, "h", s)
    elif s.norm == "batch":
        assert bias is not None
        x_gates = _bn(x_gates, norms, "x", s) + bias
        h_gates = _bn(h_proj, norms, "h", s)
    (x_zr, x_n), (h_zr, h_n) = _split_gates(x_gates, 3, 2), _split_gates(h_gates, 3, 2)
    if s.norm == "layer-per-gate":
        (gain_zr, gain_n), (bias_zr, bias_n) = _split_gates(norms["gain_h"], 3, 2), _split_gates(norms["bias_h"], 3, 2)
        z, r = (sigmoid(gate) for gate in _each_gate(x_zr + h_zr, 2, gain_zr, bias_zr, s))
        n = tanh(layer_norm(x_n + r * h_n, gain_n, bias_n, eps=s.eps))
    else:
        if s.norm == "recurrent-bias":
            h_n = h_n + norms["bias_n"]
        z, r = split(sigmoid(x_zr + h_zr), 2, axis=-1)
        n = tanh(x_n + r * h_n)
    return (1.0 - z) * h + z * n
