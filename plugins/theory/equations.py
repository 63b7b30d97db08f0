"""The paper's layers and cells, written down as they are printed, against our operators and cells, in float64.

The paper has no epsilon, so ours is 0 here. Sums, means and gates are those of the equations, with nothing shared
between this module and `duoln.ops`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duoln import nn, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.errors import BackendError
from duoln.nn.cells import RecurrentCell
from duoln.ops.recurrent.variants import CELLS, Norm
from duoln.plugins.theory.statements import Statement
from duoln.randomness import Stream

BATCH, INPUTS, HIDDEN, STEPS = 5, 4, 6, 3
_Arrays = dict[str, np.ndarray]
_Step = Callable[[np.ndarray, tuple[np.ndarray, ...], _Arrays], tuple[np.ndarray, ...]]
"""One time step as printed: input, states (hidden state and cell), parameters -> next states."""


def equations(backend: Backend, seed: int = 0) -> list[Statement]:
    """The relative difference of each layer and cell from its equation: of outputs, and of states over some time steps.

    Args:
        backend: where our operators run, in float64.
        seed: of inputs and parameters.

    Raises:
        BackendError: a backend without float64.
    """
    if "float64" not in backend.dtypes:
        raise BackendError(f"[equations] expected a backend with float64, found {backend.name} on {backend.device}")
    rng = Stream(seed, "equations")
    summed, gain, bias = rng.gaussian((BATCH, HIDDEN)), 0.5 + rng.uniform((HIDDEN,)), rng.gaussian((HIDDEN,))
    batch = ops.batch_norm(*(_tensor(a, backend) for a in (summed, gain, np.zeros(HIDDEN))), eps=0.0)[0]
    layer = ops.layer_norm(*(_tensor(a, backend) for a in (summed, gain, bias)), eps=0.0)
    return [
        Statement("eq. 2", "batch norm of summed inputs", True, _error(batch, _batch_norm(summed, gain))),
        Statement("eq. 3, 15", "layer norm of summed inputs", True, _error(layer, _layer_norm(summed, gain, bias))),
        *(Statement(where, text, True, _of_cell(cell(INPUTS, HIDDEN, norm, eps=0.0), step, seed, backend))
          for where, text, cell, norm, step in _CELLS)]


def _tensor(array: np.ndarray, backend: Backend) -> Tensor:
    return Tensor(backend.asarray(array, "float64"), backend)


def _error(ours: Tensor, printed: np.ndarray) -> float:
    return float(np.linalg.norm(ours.numpy() - printed) / np.linalg.norm(printed))


def _of_cell(cell: RecurrentCell, step: _Step, seed: int, backend: Backend) -> float:
    """The greatest relative difference of a state at a time step; all parameters are random, biases and gains too."""
    rng = Stream(seed, f"equations.{cell.cell}.{cell.norm}")
    params = {name: (0.5 if name.startswith("gain") else 0.0) + rng.gaussian(array.shape)
              for name, array in cell.init(rng).items()}
    tensors = {name: _tensor(array, backend) for name, array in params.items()}
    printed = tuple(rng.gaussian((BATCH, HIDDEN)) for _ in cell.state_names)
    ours = tuple(_tensor(state, backend) for state in printed)
    errors = []
    for x in rng.gaussian((STEPS, BATCH, INPUTS)):
        printed, ours = step(x, printed, params), cell(tensors, _tensor(x, backend), ours)
        errors += [_error(a, b) for a, b in zip(ours, printed, strict=True)]
    return float(np.max(errors))  # NumPy's, because Python's max could ignore a NaN


# The equations as printed ------------------------------------------------------------------------------

def _batch_norm(summed: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Eq. 2; the statistics of each unit are those of the batch."""
    centred = summed - summed.mean(axis=0)
    normalised: np.ndarray = gain / np.sqrt((centred**2).mean(axis=0)) * centred
    return normalised


def _layer_norm(z: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Eq. 3 and 15, with alpha the gain and beta the bias."""
    centred = z - z.mean(axis=-1, keepdims=True)
    normalised: np.ndarray = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True)) * gain + bias
    return normalised


def _sigmoid(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = 1.0 / (1.0 + np.exp(-x))
    return y


def _rnn(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 4."""
    return (np.tanh(_layer_norm(states[0] @ p["w_h"] + x @ p["w_x"], p["gain_h"], p["bias_h"])),)


def _gated(gates: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 18 or 21: the output gate, open, and the next cell, from the gates i, f, g, o and the cell."""
    i, f, g, o = np.split(gates, CELLS["lstm"].gates, axis=-1)
    return _sigmoid(o), _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)


def _lstm(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 17-19."""
    o, c = _gated(states[0] @ p["w_h"] + x @ p["w_x"] + p["bias"], states[1])
    return o * np.tanh(c), c


def _layer_lstm(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 20-22."""
    o, c = _gated(_layer_norm(states[0] @ p["w_h"], p["gain_h"], p["bias_h"])
                  + _layer_norm(x @ p["w_x"], p["gain_x"], p["bias_x"]) + p["bias"], states[1])
    return o * np.tanh(_layer_norm(c, p["gain_c"], p["bias_c"])), c


def _draw_lstm(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 29-31."""
    o, c = _gated(states[0] @ p["w_h"] + x @ p["w_x"] + p["bias"], states[1])
    return o * np.tanh(_layer_norm(c, p["gain_c"], p["bias_c"])), c


def _gru_state(z: np.ndarray, n: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, ...]:
    """Eq. 25 or 28."""
    return ((1 - _sigmoid(z)) * h + _sigmoid(z) * np.tanh(n),)


def _gru(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 23-25; our cell has a bias, which the equations leave out."""
    [h] = states
    z_of_x, r_of_x, n_of_x = np.split(x @ p["w_x"] + p["bias"], 3, axis=-1)
    z_of_h, r_of_h, n_of_h = np.split(h @ p["w_h"], 3, axis=-1)
    return _gru_state(z_of_h + z_of_x, n_of_x + _sigmoid(r_of_h + r_of_x) * n_of_h, h)


def _layer_gru(x: np.ndarray, states: tuple[np.ndarray, ...], p: _Arrays) -> tuple[np.ndarray, ...]:
    """Eq. 26-28: the gates z and r share a norm, and n has one of its own."""
    [h] = states

    def normalised(summed: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        cut = 2 * HIDDEN
        gain, bias = p[f"gain_{name}"], p[f"bias_{name}"]
        return (_layer_norm(summed[:, :cut], gain[:cut], bias[:cut]),
                _layer_norm(summed[:, cut:], gain[cut:], bias[cut:]))

    (gates_of_x, n_of_x), (gates_of_h, n_of_h) = normalised(x @ p["w_x"], "x"), normalised(h @ p["w_h"], "h")
    z, r = np.split(gates_of_h + gates_of_x, 2, axis=-1)
    return _gru_state(z, n_of_x + _sigmoid(r) * n_of_h, h)


_CELLS: tuple[tuple[str, str, type[RecurrentCell], Norm, _Step], ...] = (
    ("eq. 4", "layer-normalised RNN", nn.RNNCell, "layer", _rnn),
    ("eq. 17-19", "LSTM", nn.LSTMCell, "none", _lstm),
    ("eq. 20-22", "layer-normalised LSTM", nn.LSTMCell, "layer", _layer_lstm),
    ("eq. 23-25", "GRU", nn.GRUCell, "none", _gru),
    ("eq. 26-28", "layer-normalised GRU", nn.GRUCell, "layer", _layer_gru),
    ("eq. 29-31", "LSTM of DRAW", nn.LSTMCell, "layer-cell", _draw_lstm),
)
