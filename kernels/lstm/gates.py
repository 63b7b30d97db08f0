"""What the NumPy rules of a whole LSTM and of one step share: the gates' terms and the norm of the cell."""

from __future__ import annotations

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host
from duoln.kernels.recurrent import shared as recurrent

NORMED_SIDES = ("layer", "layer-theano")
"""The variants with a norm over the input's side and one over the state's."""


def make_terms(norms: dict[str, Array], bias: Array, norm: str) -> recurrent.Terms:
    """What multiplies and is added to the two sides, from the norms' parameters and the bias."""
    half = recurrent.halves(len(bias), len(bias) * 3 // 4, bias.dtype)
    if norm not in NORMED_SIDES:
        return recurrent.Terms(half, half, half * bias)
    biases = norms["bias_x"] + norms["bias_h"] + bias
    return recurrent.Terms(half * norms["gain_x"], half * norms["gain_h"], half * biases)


def split_gates(z: Array) -> list[Array]:
    """Views of the four gates of (B, 4H): forget, input, output, candidate."""
    hidden = z.shape[1] // 4
    return [z[:, k * hidden:(k + 1) * hidden] for k in range(4)]


class CellNorm:
    """Layer norm of the cell, in buffers of one step."""

    def __init__(self, norms: dict[str, Array], eps: float, like: Array) -> None:
        self.gain, self.bias, self.eps = norms["gain_c"], norms["bias_c"], eps
        self.mean_of = np.full((like.shape[1], 1), 1 / like.shape[1], like.dtype)
        self.normal = host.empty_like(like)
        self.d_gain, self.d_bias = np.zeros_like(self.gain), np.zeros_like(self.bias)

    def __call__(self, c: Array, out: Array) -> Array:
        """The normalised cell into `out`; one over the deviation."""
        np.subtract(c, c @ self.mean_of, self.normal)
        factor = recurrent.scale_rows(self.normal, self.eps)
        np.multiply(self.normal, self.gain, out)
        np.add(out, self.bias, out)
        return factor

    def gradient(self, g: Array, factor: Array, scratch: Array) -> None:
        """Turn the gradient after the norm into the one before it, in place, and add to those of gain and bias."""
        d_gain, d_bias = self.parameters(g, scratch)
        self.d_gain += d_gain
        self.d_bias += d_bias
        self.input(g, factor, scratch)

    def parameters(self, g: Array, scratch: Array | None = None) -> tuple[Array, Array]:
        """The gradients of gain and bias of one step, from the gradient after the norm."""
        return recurrent.column_sums(np.multiply(g, self.normal, scratch)), recurrent.column_sums(g)

    def input(self, g: Array, factor: Array, scratch: Array) -> None:
        """Turn the gradient after the norm into the one before it, in place."""
        np.multiply(g, self.gain, g)
        np.subtract(g, g @ self.mean_of, g)
        recurrent.scale_rows_gradient(g, self.normal, factor, scratch)
