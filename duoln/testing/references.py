"""The equations of layer norm, batch norm and of each cell's variants in plain NumPy, written from the papers alone.

Nothing is shared with `duoln.ops`, so that what is computed here may judge it. `p` holds a cell's parameters by the
names of `nn`: w_x, w_h, bias, and gains and biases of the norms. Gates stand in the order of `ops.recurrent`: an
LSTM's i, f, g, o, a GRU's z, r, n.

Shape:
    x (..., in), states (..., H), w_x (in, gates * H), w_h (H, gates * H), bias (gates * H,) -> states (..., H).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]
Step = Callable[..., tuple[Array, ...]]
"""A time step: `step(p, x, *states, eps=1e-5)` gives the next states."""


def sigmoid(x: Array) -> Array:
    """The logistic function, 1 / (1 + e^-x)."""
    y: Array = 1 / (1 + np.exp(-x))
    return y


def layer_norm(x: Array, gain: Array, bias: Array, eps: float = 1e-5) -> Array:
    """Layer norm over the last axis (Ba et al. 2016, eq. 3 and 15)."""
    centred = x - x.mean(-1, keepdims=True)
    y: Array = gain * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) + bias
    return y


def batch_norm(x: Array, gain: Array, eps: float = 1e-5) -> Array:
    """Batch norm by the statistics of all rows (Ba et al. 2016, eq. 2)."""
    rows = x.reshape(-1, x.shape[-1])
    centred = x - rows.mean(0)
    y: Array = gain * centred / np.sqrt(rows.var(0) + eps)
    return y


def lstm_states(gates: Array, c: Array, norm: Callable[[Array], Array] | None = None) -> tuple[Array, Array]:
    """The next hidden state and cell of an LSTM from its gates and its cell (eq. 18 and 19, or 21 and 22).

    `norm` is that of the new cell before the output; the cell itself is carried on.
    """
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h: Array = sigmoid(o) * np.tanh(c if norm is None else norm(c))
    return h, c


def gru_state(x_gates: Array, h_gates: Array, h: Array) -> Array:
    """The next state of a GRU from the gates of the input and of the state (eq. 23-25, or 26-28)."""
    (z_x, r_x, n_x), (z_h, r_h, n_h) = np.split(x_gates, 3, axis=-1), np.split(h_gates, 3, axis=-1)
    z = sigmoid(z_h + z_x)
    new: Array = (1 - z) * h + z * np.tanh(n_x + sigmoid(r_h + r_x) * n_h)
    return new


def _normed(p: Parameters, x: Array, name: str, eps: float) -> Array:
    return layer_norm(x, p[f"gain_{name}"], p[f"bias_{name}"], eps)


def _rnn_none(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    return (np.tanh(x @ p["w_x"] + h @ p["w_h"] + p["bias"]),)


def _rnn_layer(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """Eq. 4."""
    return (np.tanh(_normed(p, h @ p["w_h"] + x @ p["w_x"], "h", eps)),)


def _rnn_layer_theano(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """The authors' layers.py: the bias twice."""
    x_gates = _normed(p, x @ p["w_x"] + p["bias"], "x", eps) + p["bias"]
    return (np.tanh(x_gates + _normed(p, h @ p["w_h"], "h", eps)),)


def _rnn_batch(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    gates = batch_norm(x @ p["w_x"], p["gain_x"], eps) + batch_norm(h @ p["w_h"], p["gain_h"], eps)
    return (np.tanh(gates + p["bias"]),)


def _lstm_none(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """Eq. 17-19."""
    return lstm_states(x @ p["w_x"] + h @ p["w_h"] + p["bias"], c)


def _plain(p: Parameters, x: Array, name: str, eps: float) -> Array:
    return layer_norm(x, np.ones(()), np.zeros(()), eps)


def _rms(p: Parameters, x: Array, name: str, eps: float) -> Array:
    """Zhang and Sennrich 2019, eq. 4."""
    y: Array = p[f"gain_{name}"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return y


def _tanh(p: Parameters, x: Array, name: str, eps: float) -> Array:
    """Zhu et al. 2025, eq. 1."""
    y: Array = p[f"gain_{name}"] * np.tanh(p[f"alpha_{name}"] * x) + p[f"bias_{name}"]
    return y


def lstm_step(norm: Callable[[Parameters, Array, str, float], Array]) -> Step:
    """Eq. 20-22 with `norm(p, values, name, eps)` in the place of layer norm."""
    def step(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
        gates = norm(p, h @ p["w_h"], "h", eps) + norm(p, x @ p["w_x"], "x", eps) + p["bias"]
        return lstm_states(gates, c, lambda c: norm(p, c, "c", eps))

    return step


def _lstm_layer_cell(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """Eq. 29-31."""
    return lstm_states(x @ p["w_x"] + h @ p["w_h"] + p["bias"], c, lambda c: _normed(p, c, "c", eps))


def _lstm_layer_theano(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """The authors' layers.py: the bias twice."""
    gates = _normed(p, x @ p["w_x"] + p["bias"], "x", eps) + _normed(p, h @ p["w_h"], "h", eps) + p["bias"]
    return lstm_states(gates, c, lambda c: _normed(p, c, "c", eps))


def _lstm_layer_per_gate(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """TensorFlow contrib: the normalised cell is carried on, and there is no bias."""
    summed, gains, biases = (np.split(a, 4, axis=-1) for a in (x @ p["w_x"] + h @ p["w_h"], p["gain_h"], p["bias_h"]))
    i, f, g, o = (layer_norm(summed[k], gains[k], biases[k], eps) for k in range(4))
    c = _normed(p, sigmoid(f) * c + sigmoid(i) * np.tanh(g), "c", eps)
    return sigmoid(o) * np.tanh(c), c


def _lstm_batch(p: Parameters, x: Array, h: Array, c: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """Cooijmans et al. 2017, eq. 6-8."""
    gates = batch_norm(h @ p["w_h"], p["gain_h"], eps) + batch_norm(x @ p["w_x"], p["gain_x"], eps) + p["bias"]
    return lstm_states(gates, c, lambda c: batch_norm(c, p["gain_c"], eps) + p["bias_c"])


def _gru_none(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """Eq. 23-25, and a bias, which the equations leave out."""
    return (gru_state(x @ p["w_x"] + p["bias"], h @ p["w_h"], h),)


def _gru_recurrent_bias(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """PyTorch's documentation of GRU, with our signs and order of gates."""
    size = h.shape[-1]
    of_n = np.concatenate((np.zeros(2 * size), p["bias_n"]))
    return (gru_state(x @ p["w_x"] + p["bias"], h @ p["w_h"] + of_n, h),)


def _gru_gates(p: Parameters, x: Array, name: str, eps: float) -> Array:
    """A product after the norm that z and r share, and that of n."""
    cut, gain, bias = x.shape[-1] * 2 // 3, p[f"gain_{name}"], p[f"bias_{name}"]
    parts = (layer_norm(x[..., part], gain[part], bias[part], eps) for part in (slice(0, cut), slice(cut, None)))
    return np.concatenate(list(parts), axis=-1)


def _gru_layer(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """Eq. 26-28."""
    return (gru_state(_gru_gates(p, x @ p["w_x"], "x", eps), _gru_gates(p, h @ p["w_h"], "h", eps), h),)


def _gru_layer_theano(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    """The authors' layers.py, with u = 1 - sigmoid(z)."""
    return (gru_state(_gru_gates(p, x @ p["w_x"] + p["bias"], "x", eps), _gru_gates(p, h @ p["w_h"], "h", eps), h),)


def _gru_layer_per_gate(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    (z_x, r_x, n_x), (z_h, r_h, n_h), gains, biases = (
        np.split(a, 3, axis=-1) for a in (x @ p["w_x"], h @ p["w_h"], p["gain_h"], p["bias_h"]))
    z, r = (sigmoid(layer_norm(gate, gains[k], biases[k], eps)) for k, gate in enumerate((z_x + z_h, r_x + r_h)))
    return ((1 - z) * h + z * np.tanh(layer_norm(n_x + r * n_h, gains[2], biases[2], eps)),)


def _gru_batch(p: Parameters, x: Array, h: Array, eps: float = 1e-5) -> tuple[Array]:
    x_gates = batch_norm(x @ p["w_x"], p["gain_x"], eps) + p["bias"]
    return (gru_state(x_gates, batch_norm(h @ p["w_h"], p["gain_h"], eps), h),)


STEPS: Mapping[tuple[str, str], Step] = {
    ("rnn", "none"): _rnn_none, ("rnn", "layer"): _rnn_layer, ("rnn", "layer-theano"): _rnn_layer_theano,
    ("rnn", "layer-per-gate"): _rnn_layer, ("rnn", "batch"): _rnn_batch,
    ("lstm", "none"): _lstm_none, ("lstm", "layer"): lstm_step(_normed), ("lstm", "layer-cell"): _lstm_layer_cell,
    ("lstm", "layer-theano"): _lstm_layer_theano, ("lstm", "layer-per-gate"): _lstm_layer_per_gate,
    ("lstm", "batch"): _lstm_batch, ("lstm", "layer-plain"): lstm_step(_plain),
    ("lstm", "layer-detached"): lstm_step(_normed), ("lstm", "rms"): lstm_step(_rms),
    ("lstm", "tanh"): lstm_step(_tanh),
    ("gru", "none"): _gru_none, ("gru", "recurrent-bias"): _gru_recurrent_bias, ("gru", "layer"): _gru_layer,
    ("gru", "layer-theano"): _gru_layer_theano, ("gru", "layer-per-gate"): _gru_layer_per_gate,
    ("gru", "batch"): _gru_batch,
}
"""One time step of each cell and variant."""


def sequence(step: Step, p: Parameters, x: Array, states: tuple[Array, ...], mask: Array | None = None,
             reverse: bool = False, eps: float = 1e-5) -> tuple[Array, ...]:
    """The hidden states of all time steps and the last states; a masked row copies its states.

    Shape:
        x (T, B, in), states (B, H), mask bool (T, B) -> (T, B, H), and (B, H) for each state.
    """
    hidden = np.zeros((len(x), *states[0].shape))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        new = step(p, x[t], *states, eps=eps)
        if mask is not None:
            new = tuple(np.where(mask[t][:, None], a, b) for a, b in zip(new, states, strict=True))
        states = new
        hidden[t] = states[0]
    return (hidden, *states)
