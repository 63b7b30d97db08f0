"""Plain NumPy for every cell and variant, one time step each, written from the equations alone.

`p` holds w_x, w_h, b and the norms' gains g_* and biases b_*. Gates: LSTM i, f, g, o (input, forget, cell
and output gate); GRU z, r, n (update, reset and new gate).
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def ln(x, gain, bias, eps=1e-5):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return gain * (x - mean) / np.sqrt(variance + eps) + bias


def bn(x, gain, eps=1e-5):
    return gain * (x - x.mean(0)) / np.sqrt(x.var(0) + eps)


def lstm_none(p, x, h, c):
    i, f, g, o = np.split(x @ p["w_x"] + h @ p["w_h"] + p["b"], 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def lstm_layer(p, x, h, c, **e):  # eq. 20-22
    a = ln(h @ p["w_h"], p["g_h"], p["b_h"], **e) + ln(x @ p["w_x"], p["g_x"], p["b_x"], **e) + p["b"]
    i, f, g, o = np.split(a, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(ln(c, p["g_c"], p["b_c"], **e)), c


def lstm_layer_cell(p, x, h, c):  # eq. 29-31
    i, f, g, o = np.split(x @ p["w_x"] + h @ p["w_h"] + p["b"], 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(ln(c, p["g_c"], p["b_c"])), c


def lstm_layer_theano(p, x, h, c):  # the authors' layers.py: the bias twice
    a = ln(x @ p["w_x"] + p["b"], p["g_x"], p["b_x"]) + ln(h @ p["w_h"], p["g_h"], p["b_h"]) + p["b"]
    i, f, g, o = np.split(a, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(ln(c, p["g_c"], p["b_c"])), c


def lstm_layer_per_gate(p, x, h, c):  # TensorFlow contrib: normalised cell carried, no bias
    gates = np.split(x @ p["w_x"] + h @ p["w_h"], 4, axis=-1)
    i, f, g, o = (ln(a, gain, bias) for a, gain, bias in zip(gates, np.split(p["g_h"], 4), np.split(p["b_h"], 4),
                                                             strict=True))
    c = ln(sigmoid(f) * c + sigmoid(i) * np.tanh(g), p["g_c"], p["b_c"])
    return sigmoid(o) * np.tanh(c), c


def lstm_batch(p, x, h, c):  # Cooijmans et al., eq. 6-8
    i, f, g, o = np.split(bn(h @ p["w_h"], p["g_h"]) + bn(x @ p["w_x"], p["g_x"]) + p["b"], 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(bn(c, p["g_c"]) + p["b_c"]), c


def _gru(z, r, x_n, h_n, h):
    return (1 - sigmoid(z)) * h + sigmoid(z) * np.tanh(x_n + sigmoid(r) * h_n)


def gru_none(p, x, h):
    n = h.shape[-1]
    a, b = x @ p["w_x"] + p["b"], h @ p["w_h"]
    return _gru(a[:, :n] + b[:, :n], a[:, n:2 * n] + b[:, n:2 * n], a[:, 2 * n:], b[:, 2 * n:], h)


def gru_recurrent_bias(p, x, h):  # PyTorch's documentation of GRU, with our signs and order of gates
    n = h.shape[-1]
    a, b = x @ p["w_x"] + p["b"], h @ p["w_h"]
    z, r = sigmoid(a[:, :n] + b[:, :n]), sigmoid(a[:, n:2 * n] + b[:, n:2 * n])
    return (1 - z) * h + z * np.tanh(a[:, 2 * n:] + r * (b[:, 2 * n:] + p["b_n"])),


def gru_layer(p, x, h, inner_bias=0.0, **e):  # eq. 26-28
    n = h.shape[-1]
    a, b = x @ p["w_x"] + inner_bias, h @ p["w_h"]
    gates = (ln(b[:, :2 * n], p["g_h"][:2 * n], p["b_h"][:2 * n], **e)
             + ln(a[:, :2 * n], p["g_x"][:2 * n], p["b_x"][:2 * n], **e))
    x_n = ln(a[:, 2 * n:], p["g_x"][2 * n:], p["b_x"][2 * n:], **e)
    h_n = ln(b[:, 2 * n:], p["g_h"][2 * n:], p["b_h"][2 * n:], **e)
    return _gru(gates[:, :n], gates[:, n:], x_n, h_n, h)


def gru_layer_theano(p, x, h):  # the authors' layers.py, with u = 1 - sigmoid(z)
    return gru_layer(p, x, h, p["b"])


def gru_layer_per_gate(p, x, h):
    n = h.shape[-1]
    a, b = x @ p["w_x"], h @ p["w_h"]
    part = lambda k: slice(k * n, (k + 1) * n)  # noqa: E731
    z, r = (ln(a[:, part(k)] + b[:, part(k)], p["g_h"][part(k)], p["b_h"][part(k)]) for k in range(2))
    new = np.tanh(ln(a[:, part(2)] + sigmoid(r) * b[:, part(2)], p["g_h"][part(2)], p["b_h"][part(2)]))
    return (1 - sigmoid(z)) * h + sigmoid(z) * new


def gru_batch(p, x, h):
    n = h.shape[-1]
    a, b = bn(x @ p["w_x"], p["g_x"]) + p["b"], bn(h @ p["w_h"], p["g_h"])
    return _gru(a[:, :n] + b[:, :n], a[:, n:2 * n] + b[:, n:2 * n], a[:, 2 * n:], b[:, 2 * n:], h)


def rnn_none(p, x, h):
    return np.tanh(x @ p["w_x"] + h @ p["w_h"] + p["b"])


def rnn_layer(p, x, h, **e):  # eq. 4
    return np.tanh(ln(x @ p["w_x"] + h @ p["w_h"], p["g_h"], p["b_h"], **e))


def rnn_layer_theano(p, x, h):
    return np.tanh(ln(x @ p["w_x"] + p["b"], p["g_x"], p["b_x"]) + p["b"] + ln(h @ p["w_h"], p["g_h"], p["b_h"]))


rnn_layer_per_gate = rnn_layer


def rnn_batch(p, x, h):
    return np.tanh(bn(x @ p["w_x"], p["g_x"]) + bn(h @ p["w_h"], p["g_h"]) + p["b"])


def run(step, p, x, states, mask=None, reverse=False, **e):
    """A sequence: hidden states and last states. A masked step copies the state."""
    outs = np.zeros((x.shape[0], *states[0].shape))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        new = step(p, x[t], *states, **e)
        new = new if isinstance(new, tuple) else (new,)
        if mask is not None:
            new = tuple(np.where(mask[t][:, None], a, b) for a, b in zip(new, states, strict=True))
        states = new
        outs[t] = states[0]
    return (outs, *states)
