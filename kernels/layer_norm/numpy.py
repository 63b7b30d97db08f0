"""Layer norm on the CPU where there is no compiler.

Row sums are products with a vector, because these use BLAS and `mean` does not; of long rows BLAS would lose
digits. For the gradient the rule keeps the normalised rows and one reciprocal deviation per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import layer_norm

_LONG_ROW = 1 << 16
"""Rows of so many values are summed without BLAS."""


class _Saved(NamedTuple):
    xhat: Array
    rstd: Array
    gain: Array | None
    activation: str | None
    y: Array


def supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
             activation: str | None = None) -> str | None:
    """The reason why this rule cannot run; None if it can."""
    return None if x.size else "there are no values"


def _mean(rows: Array) -> Array:
    """The mean of each row, (rows, 1)."""
    width = rows.shape[1]
    if width >= _LONG_ROW:
        return np.mean(rows, axis=1, keepdims=True)
    means: Array = rows @ np.ones((width, 1), rows.dtype) / width
    return means


def _mean_of_products(x: Array, y: Array) -> Array:
    """The mean of the products of the values of each row, (rows, 1)."""
    width = x.shape[1]
    sums: Array = np.vecdot(x, y) if width < _LONG_ROW else (x * y).sum(axis=1)
    return sums[:, None] / width


def _rstd(centred: Array, eps: float) -> Array:
    """One over the deviation of each row, (rows, 1). Squares that the dtype cannot hold are computed in a wider one."""
    limits = np.finfo(centred.dtype)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        variance = _mean_of_products(centred, centred) + eps
        rstd: Array = 1 / np.sqrt(variance)
    far = ~((variance > limits.tiny / limits.eps) & (variance <= limits.max))[:, 0]
    if far.any():
        rstd[far] = 1 / np.sqrt((centred[far].astype(np.longdouble) ** 2).mean(axis=1, keepdims=True) + eps)
    return rstd


def forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
            activation: str | None = None) -> tuple[Array, _Saved]:
    """The normalised rows; it saves the rows before gain and bias, and their reciprocal deviations."""
    rows = np.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])
    centred = rows - _mean(rows)
    centred -= _mean(centred)  # the rest of a large mean, after rounding
    if not eps:
        centred[np.ptp(rows, axis=1) == 0] = 0  # rounding leaves a rest of equal values, which would be normalised
    rstd = _rstd(centred, eps)
    xhat = centred * rstd
    y = xhat if gain is None else xhat * gain
    if bias is not None:
        y = y + bias
    if activation:
        y = be.maximum(y, 0.0) if activation == "relu" else np.tanh(y)
    return y.reshape(x.shape), _Saved(xhat, rstd, gain, activation, y)


def vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of rows, gain and bias."""
    xhat, rstd, gain, activation, y = saved
    dy = np.ascontiguousarray(gout).reshape(xhat.shape)
    if activation:
        dy = be.where(y > 0, dy, 0.0) if activation == "relu" else dy * (1 - y * y)
    ones = np.ones(len(xhat), xhat.dtype)
    dx = None
    if needs[0]:
        d_xhat = dy if gain is None else dy * gain
        dx = (rstd * (d_xhat - _mean(d_xhat) - xhat * _mean_of_products(d_xhat, xhat))).reshape(gout.shape)
    return dx, ones @ (dy * xhat) if needs[1] else None, ones @ dy if needs[2] else None


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("interpreted", forward, vjp, supports), backend="numpy")
