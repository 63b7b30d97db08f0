"""Shared parts of the recurrent operators' NumPy rules: products, norms without temporaries, gates, masked rows.

Two facts make a time step cheap. First, the mean of its input does not change layer norm, so the mean of each row is
subtracted from the weights once (`centred`) instead of at each time step. The means of the weights' gradients are
subtracted once, too. Second, sigmoid(x) is (1 + tanh(x / 2)) / 2. The gains and biases include the factor 1 / 2, so one
`tanh` computes all gates of a time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host


class Terms(NamedTuple):
    """The multipliers of x_proj and h_proj and the term added to their sum; they are halved if a sigmoid follows."""

    gain_x: Array
    gain_h: Array
    biases: Array


class Normalised(NamedTuple):
    """x_proj and h_proj of all time steps after their norms, before gain and bias.

    Shape:
        xhat_x and xhat_h (T, B, gates * H); rstd_x and rstd_h (T, B, norms of a row).
    """

    xhat_x: Array
    xhat_h: Array
    rstd_x: Array
    rstd_h: Array


class Walked(NamedTuple):
    """The values that every cell keeps of the time loop."""

    x: Array
    h: Array
    """The first hidden state."""
    w_x: Array
    w_h: Array
    mask: Array | None
    hidden: Array
    """The hidden state after each time step, (T, B, H)."""
    reverse: bool


def supports(variants: Sequence[str]) -> Callable[..., str | None]:
    """A function of the arguments: it returns None, or the reason why a rule for these variants cannot run."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", eps: float = 1e-5,
               eps_place: str = "inside", **unused: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no fused rule"
        if eps_place != "inside":
            return "epsilon is outside the root"
        return None if x.size and h.size else "there are no values"

    return reason


# Norms -----------------------------------------------------------------------------------------------------

def centred(weight: Array) -> Array:
    """The matrix without its rows' means: layer norm of its product is the same, and the product has no mean."""
    return weight - np.add.reduce(weight, axis=1, keepdims=True) * (1 / weight.shape[1])


def normalise_rows(x: Array, eps: float) -> Array:
    """Divide rows without a mean by their deviation, in place; returns rstd, (rows, 1)."""
    rstd = np.vecdot(x, x)[:, None]
    rstd *= 1 / x.shape[1]
    rstd += eps
    np.sqrt(rstd, rstd)
    np.reciprocal(rstd, rstd)
    np.multiply(x, rstd, x)
    return rstd


def normalise_rows_gradient(d: Array, xhat: Array, rstd: Array, scratch: Array) -> None:
    """Turn the gradient after `normalise_rows` into the one before it, in place; `centred` later removes its mean."""
    mean_d_xhat = np.vecdot(d, xhat)[:, None]
    mean_d_xhat *= 1 / xhat.shape[1]
    np.multiply(xhat, mean_d_xhat, scratch)
    np.subtract(d, scratch, d)
    np.multiply(d, rstd, d)


def norm_gradient(d: Array, xhat: Array, rstd: Array, gain: Array, parts: Sequence[slice], d_gain: Array,
                  d_proj: Array, scratch: Array, ones: Array) -> None:
    """Write the gradient before a norm of one time step to `d_proj`; the gain's gradient is added to `d_gain`.

    Args:
        d: the gradient after the norm, (B, gates * H).
        xhat: the normalised values, like `d`.
        rstd: of each norm, (B, norms).
        gain: (gates * H,).
        parts: the columns of each norm.
        d_gain: like `gain`.
        d_proj: like `d`.
        scratch: like `d`.
        ones: (B,).
    """
    np.multiply(d, xhat, scratch)
    np.add(d_gain, ones @ scratch, d_gain)
    np.multiply(d, gain, d_proj)
    for k, part in enumerate(parts):
        normalise_rows_gradient(d_proj[:, part], xhat[:, part], rstd[:, k:k + 1], scratch[:, part])


def column_sums(x: Array) -> Array:
    """Sums over rows, by BLAS."""
    return np.ones(len(x), x.dtype) @ x


# Gates -----------------------------------------------------------------------------------------------------

def halves(width: int, sigmoids: int, dtype: np.dtype) -> Array:
    """0.5 for the columns that become sigmoids, 1 for the others."""
    factors = np.empty(width, dtype)
    factors.fill(1)
    factors[:sigmoids] = 0.5
    return factors


def add_gates(xhat_x: Array, xhat_h: Array, terms: Terms, out: Array, scratch: Array) -> Array:
    """Write the gates before their non-linearities, from two normalised products, to `out`."""
    np.multiply(xhat_x, terms.gain_x, out)
    np.multiply(xhat_h, terms.gain_h, scratch)
    np.add(out, scratch, out)
    np.add(out, terms.biases, out)
    return out


def activate(z: Array, sigmoids: int) -> None:
    """Compute tanh of all columns and from it the sigmoid of the first ones, in place (their inputs are halved)."""
    np.tanh(z, z)
    front = z[:, :sigmoids]
    np.multiply(front, 0.5, front)
    np.add(front, 0.5, front)


def slopes(gates: Array, sigmoids: int, out: Array) -> None:
    """The derivatives of gates: s (1 - s) of the first columns, 1 - t^2 of the rest."""
    np.multiply(gates, gates, out)
    np.subtract(gates[:, :sigmoids], out[:, :sigmoids], out[:, :sigmoids])
    np.subtract(1.0, out[:, sigmoids:], out[:, sigmoids:])


# Time ------------------------------------------------------------------------------------------------------

def order(steps: int, reverse: bool) -> Sequence[int]:
    """The time steps in the order of computation."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def states_before(walked: Walked) -> Array:
    """The hidden state before each time step: (T, B, H)."""
    first, hidden = walked.h[None], walked.hidden
    return np.concatenate((hidden[1:], first) if walked.reverse else (first, hidden[:-1]))


def set_aside(mask: Array, *gradients: Array) -> list[Array]:
    """Remove the gradients of masked rows from a time step; the time step before gets them unchanged.

    Shape:
        mask bool (B,), gradients (B, H): masked rows become 0 in place -> those rows, and 0 in the others.
    """
    masked = ~mask[:, None]
    aside = [np.where(masked, d, 0) for d in gradients]
    for d in gradients:
        np.copyto(d, 0, where=masked)
    return aside


# Products --------------------------------------------------------------------------------------------------

def project_input(x: Array, weight: Array) -> Array:
    """`x @ weight` of all time steps and rows at once: (T, B, in) by (in, G) to (T, B, G)."""
    steps, batch, n_in = x.shape
    x_proj = host.empty((steps * batch, weight.shape[1]), x.dtype)
    np.matmul(x.reshape(steps * batch, n_in), weight, out=x_proj)
    return x_proj.reshape(steps, batch, -1)


def product_gradients(walked: Walked, d_x_proj: Array, d_h_proj: Array,
                      need_x: bool) -> tuple[Array | None, Array, Array]:
    """The gradients of x (if needed), w_x and w_h from those of all time steps' products; each costs one product."""
    d_x_rows, d_h_rows = (d.reshape(-1, d.shape[2]) for d in (d_x_proj, d_h_proj))
    rows = len(d_x_rows)
    d_w_h = states_before(walked).reshape(rows, -1).T @ d_h_rows
    d_w_x = walked.x.reshape(rows, -1).T @ d_x_rows
    return (d_x_rows @ walked.w_x.T).reshape(walked.x.shape) if need_x else None, d_w_x, d_w_h
