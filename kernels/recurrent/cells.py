"""The cells' variants that have fused rules, one row each, and the conditions that these rules share.

Most have a compiled walk on the CPU (`COMPILED_WALKS`), those of `FUSED` have rules on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.ops.recurrent.variants import CELLS

Supports = Callable[..., str | None]
"""A function of a rule's arguments: it returns None, or the reason why the rule cannot run."""


class CompiledWalk(NamedTuple):
    """The compiled walk of a variant."""

    text: str
    """The end of its text's name: variants that differ in their biases alone share a text."""
    norms: str
    """Over what its norms are, a word of norms.h."""
    constant: str
    """The other constant of the text, see the cell's sequence.h."""
    kept: int
    """Floats that it keeps for the gradient per time step, row and hidden unit; with few inputs the LSTM of `layer`
    keeps 6. Norms over the batch keep some for each time step, too."""


COMPILED_WALKS = {
    ("rnn", "none"): CompiledWalk("none", "NOTHING", "bool APART = false", 2),
    ("rnn", "layer"): CompiledWalk("layer", "ROW", "bool APART = false", 2),
    ("rnn", "layer-theano"): CompiledWalk("layer_theano", "ROW", "bool APART = true", 3),
    ("rnn", "layer-per-gate"): CompiledWalk("layer", "ROW", "bool APART = false", 2),
    ("rnn", "batch"): CompiledWalk("batch", "BATCH", "bool APART = true", 3),
    ("lstm", "none"): CompiledWalk("none", "NOTHING", "bool CELL = false", 6),
    ("lstm", "layer"): CompiledWalk("layer", "ROW", "bool CELL = true", 10),
    ("lstm", "layer-cell"): CompiledWalk("layer_cell", "NOTHING", "bool CELL = true", 6),
    ("lstm", "layer-theano"): CompiledWalk("layer", "ROW", "bool CELL = true", 10),
    ("lstm", "layer-per-gate"): CompiledWalk("layer_per_gate", "GATE", "bool CELL = true", 7),
    ("lstm", "batch"): CompiledWalk("batch", "BATCH", "bool CELL = true", 10),
    ("gru", "none"): CompiledWalk("none", "NOTHING", "int H_BIASES = 0", 5),
    ("gru", "recurrent-bias"): CompiledWalk("recurrent_bias", "NOTHING", "int H_BIASES = 1", 5),
    ("gru", "layer"): CompiledWalk("layer", "ROW", "int H_BIASES = 3", 7),
    ("gru", "layer-theano"): CompiledWalk("layer", "ROW", "int H_BIASES = 3", 7),
    ("gru", "layer-per-gate"): CompiledWalk("layer_per_gate", "GATE", "int H_BIASES = 3", 5),
    ("gru", "batch"): CompiledWalk("batch", "BATCH", "int H_BIASES = 0", 7),
}
"""By cell and norm."""


class Fused(NamedTuple):
    """The numbers that the walks of GPUs need of one variant, beside what `ops.recurrent.variants` says of it."""

    exchanged: tuple[int, ...] = ()
    """Values of a row that the blocks of a cluster exchange in a time step forward, an entry for each exchange."""
    exchanged_back: tuple[int, ...] = ()
    """The same, backward."""
    registers: int = 0
    """Registers that a walk of a cluster takes beyond those of the other variants."""


FUSED = {
    ("rnn", "none"): Fused(),
    ("rnn", "layer"): Fused((1,), (2,)),
    ("lstm", "none"): Fused(),
    ("lstm", "layer"): Fused((1, 4), (2, 4)),
    ("lstm", "layer-cell"): Fused((4,), (2,)),
    ("lstm", "layer-theano"): Fused((1, 4), (2, 4)),
    ("gru", "none"): Fused(),
    ("gru", "layer"): Fused((2,), (8,), 36),
    ("gru", "layer-theano"): Fused((2,), (8,), 36),
}
"""By cell and norm."""


def fused_norms(cell: str) -> tuple[str, ...]:
    """The variants of a cell that have fused rules."""
    return tuple(norm for of_cell, norm in FUSED if of_cell == cell)


class Norms(NamedTuple):
    """The norms of a variant."""

    gates: bool
    """True if the products, or a tanh RNN's sum of both, are normalised."""
    cell: bool
    """True if an LSTM's cell is normalised before the output."""

    @classmethod
    @cache
    def of(cls, cell: str, norm: str) -> Norms:
        """The norms of a cell's variant."""
        parameters = CELLS[cell].variants[norm].norms
        return cls("gain_h" in parameters, "gain_c" in parameters)


class Arrays(NamedTuple):
    """The arrays of an operator over a sequence, apart."""

    states: tuple[Array, ...]
    w_x: Array
    w_h: Array
    bias: Array | None
    mask: Array | None
    norms: dict[str, Array]
    """The norms' parameters by name."""

    @classmethod
    def of(cls, cell: str, norm: str, arrays: tuple[Any, ...]) -> Arrays:
        """The arrays behind x, in the operator's order."""
        count = len(CELLS[cell].states)
        w_x, w_h, bias, mask, *norms = arrays[count:]
        return cls(arrays[:count], w_x, w_h, bias, mask,
                   dict(zip(CELLS[cell].variants[norm].norms, norms, strict=True)))


def supports(cell: str) -> Supports:
    """The condition of the CPU's rules for a cell's variants."""

    def refusal(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", **unused: Any) -> str | None:
        if (cell, norm) not in FUSED:
            return f"norm '{norm}' has no fused rule"
        return None if x.size and h.size else "there are no values"

    return refusal


def bounds_unmasked(cell: str, supports: Supports) -> Supports:
    """The condition of a rule over sequences that bounds the gradients between time steps of all rows alike."""
    mask_place = len(CELLS[cell].states) + 3  # behind the states, both weights and the bias

    def refusal(be: Backend, x: Array, *arrays: Array | None, gradient_limit: float | None = None,
                **attrs: Any) -> str | None:
        if gradient_limit is not None and arrays[mask_place] is not None:
            return "it does not bound gradients between time steps under a mask"
        return supports(be, x, *arrays, **attrs)

    return refusal
