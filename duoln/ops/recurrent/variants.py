"""The cells and their variants, one row each: gates, states, parameters of the norms, and where the bias is.

| name | what |
| --- | --- |
| `none` | the plain cell |
| `recurrent-bias` | the plain GRU with a bias of the recurrent n too, `bias_n`, as cuDNN, PyTorch and Keras have it |
| `layer` | Ba et al. 2016: eq. 4 (RNN), 20-22 (LSTM), 26-28 (GRU) |
| `layer-cell` | eq. 29-31: layer norm of the LSTM's cell only, before the output |
| `layer-theano` | the authors' Theano cells: the bias inside the input's norm, and again outside in RNN and LSTM |
| `layer-per-gate` | each gate normalised alone; the LSTM carries the normalised cell (TensorFlow contrib) |
| `batch` | recurrent batch norm (Cooijmans et al. 2017): statistics of the batch at each time step |
| `layer-plain` | `layer` without gains and biases of the norms |
| `layer-detached` | `layer` whose mean and variance are constants to the gradient (Xu et al. 2019, DetachNorm) |
| `rms` | RMS norm in the place of layer norm: no mean, no bias (Zhang and Sennrich 2019) |
| `tanh` | gain * tanh(alpha x) + bias in the place of layer norm, with a scalar alpha (Zhu et al. 2025) |

Gates stand in this order along the last axis: an LSTM's i, f, g, o (input, forget, cell and output gate; eq. 20, in the
order of PyTorch, MLX and Keras), a GRU's z, r, n (update, reset and new gate; eq. 26, 27).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from duoln.backends.protocol import STORAGE
from duoln.core.arguments import described, did_you_mean
from duoln.errors import UsageError

CellName = Literal["rnn", "lstm", "gru"]
Norm = Literal["none", "recurrent-bias", "layer", "layer-cell", "layer-theano", "layer-per-gate", "batch",
               "layer-plain", "layer-detached", "rms", "tanh"]
Over = Literal["row", "gate", "batch"]
NORMS: tuple[Norm, ...] = get_args(Norm)
COMPARED = ("layer-plain", "layer-detached", "rms", "tanh")
"""Variants for comparisons: the LSTM's `layer` with something else in the place of layer norm. Their rule is the
composed one, and no other library's layer has them."""


class Variant(NamedTuple):
    """A variant of a cell."""

    norms: tuple[str, ...] = ()
    """The parameters beside weights and bias, in the order of the operators.

    x is the norm of x W_x, h that of h W_h (or of the sum of both, if there is no x), c that of the LSTM's cell; n is
    the GRU's recurrent n.
    """
    over: Over = "row"
    """The values that share statistics: those of a row (a GRU's z and r, and its n alone), each gate of a row, or each
    column of the batch at a time step."""
    inner_bias: bool = False
    """True if the bias is added to x W_x before its norm."""
    outer_bias: bool = True
    """True if the bias is added to the gates after their norms."""

    @property
    def is_normed(self) -> bool:
        """True if it has a norm."""
        return any(name.startswith("gain") for name in self.norms)


class Cell(NamedTuple):
    """A kind of cell."""

    gates: int
    """Weights are (in, gates * hidden) and (hidden, gates * hidden)."""
    states: tuple[str, ...]
    increased: str | None
    """The state to which a time step adds a little, which would be lost in 16 bits."""
    apart: bool
    """True if the gates need the products with x and h apart: a GRU's r multiplies only that with h (eq. 27)."""
    parts: tuple[int, ...]
    """The gates that share one norm: all, or a GRU's z and r, and n alone (eq. 26, 27)."""
    variants: Mapping[str, Variant]


_X_AND_H = ("gain_x", "bias_x", "gain_h", "bias_h")
_OF_H, _OF_C = _X_AND_H[2:], ("gain_c", "bias_c")
CELLS: Mapping[str, Cell] = {
    "rnn": Cell(1, ("h",), None, False, (1,), {
        "none": Variant(),
        "layer": Variant(_OF_H, outer_bias=False),
        "layer-theano": Variant(_X_AND_H, inner_bias=True),
        "layer-per-gate": Variant(_OF_H, "gate", outer_bias=False),
        "batch": Variant(("gain_x", "gain_h"), "batch")}),
    "lstm": Cell(4, ("h", "c"), "c", False, (4,), {
        "none": Variant(),
        "layer": Variant((*_X_AND_H, *_OF_C)),
        "layer-cell": Variant(_OF_C),
        "layer-theano": Variant((*_X_AND_H, *_OF_C), inner_bias=True),
        "layer-per-gate": Variant((*_OF_H, *_OF_C), "gate", outer_bias=False),
        "batch": Variant(("gain_x", "gain_h", *_OF_C), "batch"),
        "layer-plain": Variant(),
        "layer-detached": Variant((*_X_AND_H, *_OF_C)),
        "rms": Variant(("gain_x", "gain_h", "gain_c")),
        "tanh": Variant((*_X_AND_H, *_OF_C, "alpha_x", "alpha_h", "alpha_c"))}),
    "gru": Cell(3, ("h",), "h", True, (2, 1), {
        "none": Variant(),
        "recurrent-bias": Variant(("bias_n",)),
        "layer": Variant(_X_AND_H, outer_bias=False),
        "layer-theano": Variant(_X_AND_H, inner_bias=True, outer_bias=False),
        "layer-per-gate": Variant(_OF_H, "gate", outer_bias=False),
        "batch": Variant(("gain_x", "gain_h"), "batch")}),
}


def state_dtype(cell: str, name: str, dtype: str) -> str:
    """The dtype of the first state `name` beside weights of a dtype: what is added to a state is lost in 16 bits."""
    return "float32" if dtype in STORAGE and CELLS[cell].increased == name else dtype


def check_variant(cell: str, norm: str, name: str = "") -> None:
    """Raises UsageError for a cell or variant that does not exist; the message lists those that do.

    It begins with `name`, that of the operator; without one, with the cell.
    """
    if not isinstance(cell, str) or cell not in CELLS:
        raise UsageError(f"[{name or 'rnn'}] expected a cell of {', '.join(CELLS)}; found {cell!r}")
    known = CELLS[cell].variants
    if not isinstance(norm, str) or norm not in known:
        raise UsageError(f"[{name or cell}] expected a norm of {', '.join(known)}; found {described(norm)}"
                         f"{did_you_mean(norm, list(known))}")


def norm_shapes(cell: str, norm: str, hidden: int) -> dict[str, tuple[int]]:
    """The normalisation parameters of a variant with their shapes, in the order of the operators.

    Raises as `check_variant`.
    """
    check_variant(cell, norm)
    return dict(_norm_shapes(cell, norm, hidden))


@lru_cache(maxsize=256)  # every call of an operator asks, a sampled token too
def _norm_shapes(cell: str, norm: str, hidden: int) -> dict[str, tuple[int]]:
    of_cell = CELLS[cell]
    wide = of_cell.gates * hidden
    return {name: (1 if name.startswith("alpha") else hidden if name.endswith(("_c", "_n")) else wide,)
            for name in of_cell.variants[norm].norms}


def has_bias(cell: str, norm: str) -> bool:
    """True if a variant that exists has a bias (gates * hidden,) beside its norms' own."""
    variant = CELLS[cell].variants[norm]
    return variant.inner_bias or variant.outer_bias
