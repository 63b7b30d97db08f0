"""Batch norm on the CPU: sums of channels as products, and passes over long rows.

Channels are few and positions many, so a pass that has a vector of channels beside each position is made of short
loops. Here a row is a whole line of pixels, with the vector repeated along it, and what is summed over rows goes
through BLAS. What is kept for the gradient is the normalised values and one reciprocal deviation a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from duoln.kernels import host

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import batch_norm


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              unbiased: bool = False) -> str | None:
    return None if x.size else "there are no values"


class _Rows:
    """An array as rows of `repeats` positions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.repeats, self.channels = shape[-2] if len(shape) > 2 else 1, shape[-1]

    def of(self, x: Array) -> Array:
        return np.ascontiguousarray(x).reshape(-1, self.repeats * self.channels)

    def vector(self, channels: Array) -> Array:
        """A value for each channel, repeated along a row."""
        return np.tile(channels, self.repeats)

    def per_channel(self, row: Array) -> Array:
        """The sum over a row's positions."""
        return row.reshape(self.repeats, self.channels).sum(axis=0)


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             unbiased: bool) -> tuple[tuple[Array, Array, Array], Any]:
    rows = _Rows(x.shape)
    values = rows.of(x)
    count = values.size // rows.channels
    ones = np.ones(len(values), x.dtype)
    mean = rows.per_channel(ones @ values) * x.dtype.type(1 / count)
    normal, y = host.empty_like(values), host.empty_like(values)
    np.subtract(values, rows.vector(mean), out=normal)
    np.multiply(normal, normal, out=y)
    variance = rows.per_channel(ones @ y) * x.dtype.type(1 / (count - unbiased))
    rstd = 1 / np.sqrt(variance + x.dtype.type(eps))
    normal *= rows.vector(rstd)
    np.multiply(normal, rows.vector(np.ones_like(rstd) if gain is None else gain), out=y)
    if bias is not None:
        y += rows.vector(bias)
    return (y.reshape(x.shape), mean, variance), (normal, rstd, gain, count - unbiased, x.shape)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    normal, rstd, gain, divisor, shape = saved
    gout, of_mean, of_variance = gouts
    rows = _Rows(shape)
    g = np.zeros_like(normal) if gout is None else rows.of(gout)
    count, number = g.size // rows.channels, g.dtype.type
    ones = np.ones(len(g), g.dtype)
    gx = np.multiply(g, normal, out=host.empty_like(g))
    along, total = rows.per_channel(ones @ gx), rows.per_channel(ones @ g)
    if needs[0]:
        scale = rstd if gain is None else rstd * gain
        # x is normal / rstd and a constant, so what the variance hands back goes along normal, too.
        direction = -scale * along * number(1 / divisor)
        constant = -scale * total * number(1 / count)
        if of_variance is not None:
            direction = direction + of_variance * number(2 / divisor) / rstd
        if of_mean is not None:
            constant = constant + of_mean * number(1 / count)
        np.multiply(normal, rows.vector(direction), out=gx)
        gx += rows.vector(constant)
        gx += g * rows.vector(scale)
    return [gx.reshape(shape) if needs[0] else None, along if needs[1] else None, total if needs[2] else None]


def attach() -> None:
    """Add the rule to `batch_norm`."""
    batch_norm.add(Rule("long rows", _forward, _vjp, _supports), backend="numpy")
