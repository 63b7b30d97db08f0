"""The variants by name, and which normalisation parameters each of them has.

| name | what |
| --- | --- |
| `none` | the plain cell |
| `recurrent-bias` | the plain GRU with a bias of the recurrent n too, `bias_n`, as cuDNN, PyTorch and Keras have it |
| `layer` | Ba et al. 2016: eq. 4 (RNN), 20-22 (LSTM), 26-28 (GRU) |
| `layer-cell` | eq. 29-31: layer norm of the LSTM's cell only, before the output |
| `layer-theano` | the authors' Theano cells: the bias inside the input's norm, and again outside in the LSTM |
| `layer-per-gate` | each gate normalised alone; the LSTM carries the normalised cell (TensorFlow contrib) |
| `batch` | recurrent batch norm (Cooijmans et al. 2017): statistics of the batch at each time step |

Gates stand in this order along the last axis: an LSTM's i, f, g, o (input, forget, cell and output gate; eq. 20, in the
order of PyTorch, MLX and Keras), a
GRU's z, r, n (update, reset and new gate; eq. 26, 27).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

from duoln.backends.protocol import STORAGE
from duoln.core.arguments import described, did_you_mean
from duoln.errors import UsageError

Cell = Literal["rnn", "lstm", "gru"]
Norm = Literal["none", "recurrent-bias", "layer", "layer-cell", "layer-theano", "layer-per-gate", "batch"]

CELLS: tuple[Cell, ...] = get_args(Cell)
NORMS: tuple[Norm, ...] = get_args(Norm)

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
"""How many gates a cell has: weights are (in, gates * hidden) and (hidden, gates * hidden)."""

# Which norms exist: x is the norm of x W_x, h that of h W_h, c that of the LSTM's cell; n is the GRU's recurrent n.
_LAYER: dict[str, tuple[str, ...]] = {"rnn": ("gain_h", "bias_h"), "gru": ("gain_x", "bias_x", "gain_h", "bias_h"),
                                      "lstm": ("gain_x", "bias_x", "gain_h", "bias_h", "gain_c", "bias_c")}
_X_AND_H = ("gain_x", "bias_x", "gain_h", "bias_h")
_PARAMETERS: dict[tuple[str, str], tuple[str, ...]] = {
    **{(cell, "none"): () for cell in CELLS},
    ("gru", "recurrent-bias"): ("bias_n",),
    **{(cell, "layer"): names for cell, names in _LAYER.items()},
    ("lstm", "layer-cell"): ("gain_c", "bias_c"),
    ("rnn", "layer-theano"): _X_AND_H,
    ("gru", "layer-theano"): _X_AND_H,
    ("lstm", "layer-theano"): (*_X_AND_H, "gain_c", "bias_c"),
    ("rnn", "layer-per-gate"): ("gain_h", "bias_h"),
    ("gru", "layer-per-gate"): ("gain_h", "bias_h"),
    ("lstm", "layer-per-gate"): ("gain_h", "bias_h", "gain_c", "bias_c"),
    ("rnn", "batch"): ("gain_x", "gain_h"),
    ("gru", "batch"): ("gain_x", "gain_h"),
    ("lstm", "batch"): ("gain_x", "gain_h", "gain_c", "bias_c"),
}

_WITHOUT_BIAS = {("rnn", "layer"), ("gru", "layer"), ("rnn", "layer-per-gate"), ("gru", "layer-per-gate"),
                 ("lstm", "layer-per-gate")}
"""Variants that have no bias but those of their norms."""


_SUMS = {"lstm": "c", "gru": "h"}
"""The state to which a time step adds a little."""


def state_dtype(cell: str, name: str, dtype: str) -> str:
    """The dtype of the first state `name` beside weights of a dtype: what is added to a state is lost in 16 bits."""
    return "float32" if dtype in STORAGE and _SUMS.get(cell) == name else dtype


def check_variant(cell: str, norm: str, name: str = "") -> None:
    """Raises UsageError for a cell or variant that does not exist; the message lists those that do.

    It begins with `name`, that of the operator; without one, with the cell.
    """
    if cell not in CELLS:
        raise UsageError(f"[{name or 'rnn'}] expected a cell of {', '.join(CELLS)}; found {cell!r}")
    if not isinstance(norm, str) or (cell, norm) not in _PARAMETERS:
        known = [n for n in NORMS if (cell, n) in _PARAMETERS]
        raise UsageError(f"[{name or cell}] expected a norm of {', '.join(known)}; found {described(norm)}"
                         f"{did_you_mean(norm, known)}")


def norm_shapes(cell: str, norm: str, hidden: int) -> dict[str, tuple[int]]:
    """The normalisation parameters of a variant with their shapes, in the order of the operators.

    Raises as `check_variant`.
    """
    if not isinstance(norm, str) or (cell, norm) not in _PARAMETERS:
        check_variant(cell, norm)
    return dict(_norm_shapes(cell, norm, hidden))


@lru_cache(maxsize=256)  # every call of an operator asks, a sampled token too
def _norm_shapes(cell: str, norm: str, hidden: int) -> dict[str, tuple[int]]:
    wide = GATES[cell] * hidden
    return {name: (hidden if name.endswith(("_c", "_n")) else wide,) for name in _PARAMETERS[cell, norm]}


def has_bias(cell: str, norm: str) -> bool:
    """Whether a variant that exists has a bias (gates * hidden,) beside its norms' own."""
    return (cell, norm) not in _WITHOUT_BIAS
