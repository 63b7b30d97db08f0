"""Layer norm of the rows of a matrix and its gradient, written as in the equations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array


class Normed(NamedTuple):
    """What the gradient of a norm needs."""

    xhat: Array
    """The normalised rows, before gain and bias: (B, n)."""
    rstd: Array
    """(B, 1)."""
    gain: Array


def normalise(x: Array, gain: Array, bias: Array, eps: float) -> tuple[Array, Normed]:
    """`gain * xhat + bias`, and what the gradient needs.

    Shape:
        x (B, n), gain and bias (n,) -> (B, n).
    """
    centred = x - x.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=1, keepdims=True)  # the offset that the rounding of a large mean leaves
    rstd = 1 / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + eps)
    xhat = centred * rstd
    return xhat * gain + bias, Normed(xhat, rstd, gain)


def norm_gradient(d: Array, normed: Normed) -> tuple[Array, Array, Array]:
    """The gradients of x, gain and bias from the gradient after the norm."""
    xhat, rstd, gain = normed
    d_xhat = d * gain
    along = np.mean(d_xhat * xhat, axis=1, keepdims=True)
    d_x = rstd * (d_xhat - d_xhat.mean(axis=1, keepdims=True) - along * xhat)
    return d_x, (d * xhat).sum(axis=0), d.sum(axis=0)
