"""Batch norm on the CPU: sums of channels as products, and passes over long lines.

What is kept for the gradient is the normalised values and one reciprocal deviation a channel.
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
    normal, y = host.empty_like(values), host.empty_like(values)
    np.subtract(values, lines.along(mean), out=normal)
    np.multiply(normal, normal, out=y)
    variance = lines.sums(y) * x.dtype.type(1 / (count - unbiased))
    rstd = 1 / np.sqrt(variance + x.dtype.type(eps))
    normal *= lines.along(rstd)
    np.multiply(normal, lines.along(np.ones_like(rstd) if gain is None else gain), out=y)
    if bias is not None:
        y += lines.along(bias)
    return (y.reshape(x.shape), mean, variance), (normal, rstd, gain, count - unbiased, x.shape)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    normal, rstd, gain, divisor, shape = saved
    gout, of_mean, of_variance = gouts
    lines = Lines(shape)
    g = np.zeros_like(normal) if gout is None else lines.of(gout)
    count, number = g.size // lines.channels, g.dtype.type
    gx = np.multiply(g, normal, out=host.empty_like(g))
    along, total = lines.sums(gx), lines.sums(g)
    if needs[0]:
        scale = rstd if gain is None else rstd * gain
        # x is normal / rstd and a constant, so what the variance hands back goes along normal, too.
        direction = -scale * along * number(1 / divisor)
        constant = -scale * total * number(1 / count)
        if of_variance is not None:
            direction = direction + of_variance * number(2 / divisor) / rstd
        if of_mean is not None:
            constant = constant + of_mean * number(1 / count)
        np.multiply(normal, lines.along(direction), out=gx)
        gx += lines.along(constant)
        gx += g * lines.along(scale)
    return [gx.reshape(shape) if needs[0] else None, along if needs[1] else None, total if needs[2] else None]


def attach() -> None:
    """Add the rule to `batch_norm`."""
    batch_norm.add(Rule("long rows", _forward, _vjp, _supports), backend="numpy")
