"""Batch norm on the CPU: sums of channels are products, and passes work on long rows.

For the gradient, the rule keeps the normalised values and one reciprocal deviation per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lines import Lines
from duoln.ops import batch_norm


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              unbiased: bool = False) -> str | None:
    return None if x.size else "there are no values"


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             unbiased: bool) -> tuple[tuple[Array, Array, Array], Any]:
    lines = Lines(x.shape)
    values = lines.of(x)
    count = values.size // lines.channels
    mean = lines.sums(values) * x.dtype.type(1 / count)
    xhat, y = host.empty_like(values), host.empty_like(values)
    np.subtract(values, lines.along(mean), out=xhat)
    np.multiply(xhat, xhat, out=y)
    variance = lines.sums(y) * x.dtype.type(1 / (count - unbiased))
    rstd = 1 / np.sqrt(variance + x.dtype.type(eps))
    xhat *= lines.along(rstd)
    np.multiply(xhat, lines.along(np.ones_like(rstd) if gain is None else gain), out=y)
    if bias is not None:
        y += lines.along(bias)
    return (y.reshape(x.shape), mean, variance), (xhat, rstd, gain, count - unbiased, x.shape)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    xhat, rstd, gain, divisor, shape = saved
    gout, d_mean, d_variance = gouts
    lines = Lines(shape)
    dy = np.zeros_like(xhat) if gout is None else lines.of(gout)
    count, number = dy.size // lines.channels, dy.dtype.type
    dx = np.multiply(dy, xhat, out=host.empty_like(dy))
    d_gain, d_bias = lines.sums(dx), lines.sums(dy)
    if needs[0]:
        scale = rstd if gain is None else rstd * gain
        # x is xhat / rstd plus a constant, so the gradient of the variance also has the direction of xhat.
        direction = -scale * d_gain * number(1 / divisor)
        constant = -scale * d_bias * number(1 / count)
        if d_variance is not None:
            direction = direction + d_variance * number(2 / divisor) / rstd
        if d_mean is not None:
            constant = constant + d_mean * number(1 / count)
        np.multiply(xhat, lines.along(direction), out=dx)
        dx += lines.along(constant)
        dx += dy * lines.along(scale)
    return [dx.reshape(shape) if needs[0] else None, d_gain if needs[1] else None, d_bias if needs[2] else None]


def attach() -> None:
    """Add the rule to `batch_norm`."""
    batch_norm.add(Rule("long rows", _forward, _vjp, _supports), backend="numpy")
