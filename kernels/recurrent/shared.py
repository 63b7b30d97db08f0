"""What the NumPy rules of the recurrent operators share: the input's side, norms without temporaries, gates.

Two facts make a step cheap. Layer norm does not see the mean of its input, so the column mean is taken out of
W_h once (`centred`) and no step has to; the gradient gets its mean taken out once, too. And sigmoid(x) is
(1 + tanh(x / 2)) / 2: with the half folded into the gains and biases, all gates of a step are one `tanh`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host


class Terms(NamedTuple):
    """What multiplies and what is added to the two sides of the gates, halved where a sigmoid follows."""

    gain_x: Array
    gain_h: Array
    biases: Array


def supports(variants: Sequence[str]) -> Callable[..., str | None]:
    """What a rule for some variants says of its arguments: None, or the reason why it cannot run."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", eps: float = 1e-5,
               eps_place: str = "inside", **others: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no fused rule"
        if eps_place != "inside":
            return "epsilon is outside the root"
        return None if x.size and h.size else "there are no values"

    return reason


def centred(weight: Array) -> Array:
    """The matrix without its rows' means: layer norm of its product is the same, and has no mean."""
    return weight - weight.mean(axis=1, keepdims=True)


def scale_rows(x: Array, eps: float) -> Array:
    """Divide rows without a mean by their deviation, in place; the factor of each row, (rows, 1)."""
    factor = np.vecdot(x, x)[:, None]
    factor *= 1 / x.shape[1]
    factor += eps
    np.sqrt(factor, factor)
    np.reciprocal(factor, factor)
    np.multiply(x, factor, x)
    return factor


def scale_rows_gradient(gradient: Array, normal: Array, factor: Array, scratch: Array) -> None:
    """Turn the gradient after `scale_rows` into the one before it, in place; the mean is left to the weights."""
    along = np.vecdot(gradient, normal)[:, None]
    along *= 1 / normal.shape[1]
    np.multiply(normal, along, scratch)
    np.subtract(gradient, scratch, gradient)
    np.multiply(gradient, factor, gradient)


def both_sides(outer: Array, inner: Array, terms: Terms, out: Array, scratch: Array) -> Array:
    """The gates' inputs from two normalised sides, into `out`."""
    np.multiply(outer, terms.gain_x, out)
    np.multiply(inner, terms.gain_h, scratch)
    np.add(out, scratch, out)
    np.add(out, terms.biases, out)
    return out


def finish_gates(z: Array, sigmoids: int) -> None:
    """Take tanh of everything, and from it the sigmoid of the first columns, in place (their inputs are halved)."""
    np.tanh(z, z)
    front = z[:, :sigmoids]
    np.multiply(front, 0.5, front)
    np.add(front, 0.5, front)


def slopes(z: Array, sigmoids: int, out: Array) -> None:
    """The derivatives of gates: s (1 - s) of the first columns, 1 - t^2 of the rest."""
    np.multiply(z, z, out)
    np.subtract(z[:, :sigmoids], out[:, :sigmoids], out[:, :sigmoids])
    np.subtract(1.0, out[:, sigmoids:], out[:, sigmoids:])


def column_sums(x: Array) -> Array:
    """Sums over rows, by BLAS."""
    return np.ones(len(x), x.dtype) @ x


def halves(width: int, sigmoids: int, dtype: np.dtype) -> Array:
    """One half for the columns that become sigmoids, one for the rest."""
    factors = np.ones(width, dtype)
    factors[:sigmoids] = 0.5
    return factors


def input_side(x: Array, weight: Array) -> Array:
    """The input's product of all steps and rows at once: (T, B, in) by (in, G) to (T, B, G)."""
    steps, batch, n_in = x.shape
    product = host.empty((steps * batch, weight.shape[1]), x.dtype)
    np.matmul(x.reshape(steps * batch, n_in), weight, out=product)
    return product.reshape(steps, batch, -1)


def states_before(states: Array, first: Array, reverse: bool) -> Array:
    """The state that each step started from: (T, B, H)."""
    return np.concatenate((states[1:], first[None])) if reverse else np.concatenate((first[None], states[:-1]))


def order(steps: int, reverse: bool) -> Sequence[int]:
    """The times in the order in which the network walks."""
    return range(steps - 1, -1, -1) if reverse else range(steps)
