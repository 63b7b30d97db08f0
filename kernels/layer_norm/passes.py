"""The compiled passes over rows, of layer norm and of RMS norm, of one array or of the sum of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host, native
from duoln.kernels.activation import NUMBERS

FILE = "layer_norm/layer_norm.cpp"
_BLOCK = 64
"""Rows whose shares of a gain's gradient are added up together, as in the C++ text."""


class Saved(NamedTuple):
    """What the gradient needs: the rows, and three numbers of each."""

    rows: Array
    """What was normalised, (rows, width)."""
    gain: Array | None
    bias: Array | None
    means: Array | None
    """(rows, 2): the mean, and the mean of the row after subtracting it; None for an RMS norm."""
    rstd: Array
    activation: str | None


class Passes:
    """The two passes of one norm.

    Args:
        norm: the name of its entries in the C++ text.
        centred: whether it takes the mean off.
    """

    def __init__(self, norm: str, centred: bool) -> None:
        self._centred = centred
        self._normalise = native.Function(
            FILE, f"{norm}_forward", "x: real[2], residual: real[2]?, gain: real[1]?, bias: real[1]?, total: real[2]?, "
            "y: real[2], means: real[2]?, rstd: real[1], rows: int64, width: int64, eps: float64, activation: int32, "
            "threads: int32")
        self._differentiate = native.Function(
            FILE, f"{norm}_backward", "x: real[2], gain: real[1]?, bias: real[1]?, means: real[2]?, rstd: real[1], "
            "dy: real[2], d_total: real[2]?, dx: real[2]?, gain_parts: real[2]?, bias_parts: real[2]?, rows: int64, "
            "width: int64, activation: int32, threads: int32")

    def forward(self, x: Array, gain: Array | None, bias: Array | None, eps: float,
                activation: str | None = None) -> tuple[Array, Saved]:
        """The norm of each row of `x`, with an activation after a layer norm."""
        flat = host.as_rows(x)
        y, saved = self._run(flat, None, gain, bias, None, eps, activation)
        return y.reshape(x.shape), saved

    def forward_of_sum(self, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                       eps: float) -> tuple[tuple[Array, Array], Saved]:
        """The norm of each row of `x` + `residual`, and that sum."""
        flat = host.as_rows(x)
        total = host.empty_like(flat)
        y, saved = self._run(flat, host.as_rows(residual), gain, bias, total, eps, None)
        return (y.reshape(x.shape), total.reshape(x.shape)), saved

    def _run(self, x: Array, residual: Array | None, gain: Array | None, bias: Array | None, total: Array | None,
             eps: float, activation: str | None) -> tuple[Array, Saved]:
        rows, width = x.shape
        gain, bias = (None if p is None else np.ascontiguousarray(p) for p in (gain, bias))
        y, rstd = host.empty_like(x), np.empty(rows, x.dtype)
        means = np.empty((rows, 2), x.dtype) if self._centred else None
        self._normalise(x, residual, gain, bias, total, y, means, rstd, rows, width, eps, NUMBERS[activation],
                        native.threads_for(x.nbytes))
        return y, Saved(x if total is None else total, gain, bias, means, rstd, activation)

    def backward(self, saved: Saved, dy: Array, d_total: Array | None, needs: Sequence[bool]) -> list[Array | None]:
        """The gradients of rows, gain and bias, as far as they are needed; `d_total` is added to that of the rows."""
        x = saved.rows
        rows, width = x.shape
        dx = host.empty_like(x) if needs[0] else None
        blocks = -(-rows // _BLOCK)
        gain_parts, bias_parts = (np.empty((blocks, width), x.dtype) if need else None for need in needs[1:])
        self._differentiate(x, saved.gain, saved.bias, saved.means, saved.rstd, host.as_rows(dy),
                            None if d_total is None else host.as_rows(d_total), dx, gain_parts, bias_parts, rows, width,
                            NUMBERS[saved.activation], native.threads_for(x.nbytes))
        return [None if dx is None else dx.reshape(dy.shape), *(None if p is None else host.added_up(p) for p in
                                                                (gain_parts, bias_parts))]


LAYER = Passes("layer_norm", centred=True)
RMS = Passes("rms_norm", centred=False)
