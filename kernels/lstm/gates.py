"""Shared by the NumPy rules of a whole LSTM and of one time step: the terms of the gates and the norm of the cell."""

from __future__ import annotations

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host
from duoln.kernels.recurrent import shared as recurrent

NORMED_GATES = ("layer", "layer-theano")
"""The variants with one norm over x_proj and one over h_proj."""


def make_terms(norms: dict[str, Array], bias: Array, norm: str) -> recurrent.Terms:
    """The multipliers of x_proj and h_proj and the terms added to them, from the norms' parameters and the bias."""
    half = recurrent.halves(len(bias), len(bias) * 3 // 4, bias.dtype)
    if norm not in NORMED_GATES:
        return recurrent.Terms(half, half, half * bias)
    biases = norms["bias_x"] + norms["bias_h"] + bias
    return recurrent.Terms(half * norms["gain_x"], half * norms["gain_h"], half * biases)


def split_gates(gates: Array) -> Array:
    """Views of the gates f, i, o, g in contiguous rows: (B, 4H) to (4, B, H)."""
    return gates.reshape(len(gates), 4, -1).swapaxes(0, 1)


class CellNorm:
    """Layer norm of the cell, in a buffer of one time step."""

    def __init__(self, norms: dict[str, Array], eps: float, like: Array) -> None:
        self.gain, self.bias, self.eps = norms["gain_c"], norms["bias_c"], eps
        self.mean_of = np.empty((like.shape[1], 1), like.dtype)
        self.mean_of.fill(1 / like.shape[1])
        self.xhat = host.empty(like.shape, like.dtype)

    def __call__(self, c: Array, out: Array) -> Array:
        """Write the normalised cell to `out`; returns rstd."""
        np.subtract(c, c @ self.mean_of, self.xhat)
        rstd = recurrent.normalise_rows(self.xhat, self.eps)
        np.multiply(self.xhat, self.gain, out)
        np.add(out, self.bias, out)
        return rstd

    def parameters(self, d: Array, scratch: Array | None = None) -> tuple[Array, Array]:
        """The gradients of gain and bias of one time step, from the gradient after the norm."""
        return recurrent.column_sums(np.multiply(d, self.xhat, scratch)), recurrent.column_sums(d)

    def input(self, d: Array, rstd: Array, scratch: Array) -> None:
        """Turn the gradient after the norm into the one before it, in place."""
        np.multiply(d, self.gain, d)
        np.subtract(d, d @ self.mean_of, d)
        recurrent.normalise_rows_gradient(d, self.xhat, rstd, scratch)
