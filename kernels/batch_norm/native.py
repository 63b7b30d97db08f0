"""Batch norm on the CPU, compiled: the statistics are read in one pass, and the rule keeps no normalised values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import channels, host, native
from duoln.ops import batch_norm

_FILE = "batch_norm/batch_norm.cpp"
_SIZES = "rows: int64, channels: int64, threads: int32"

_moments = native.Function(_FILE, "batch_moments", "x: real[2], means: float64[2], squares: float64[2], eps: float64, "
                                                   f"{_SIZES}")
_normalise = native.Function(_FILE, "batch_normalise", "x: real[2], mean: real[1], mean_rest: real[1], scale: real[1], "
                                                       f"bias: real[1]?, y: real[2], {_SIZES}")
_gradient_sums = native.Function(_FILE, "batch_gradient_sums",
                                 "x: real[2], dy: real[2], mean: real[1], mean_rest: real[1], dy_parts: real[2], "
                                 f"along_parts: real[2], {_SIZES}")
_image_gradient = native.Function(_FILE, "batch_image_gradient",
                                  "x: real[2], dy: real[2], mean: real[1], mean_rest: real[1], rstd: real[1], "
                                  f"scale: real[1], direction: real[1], constant: real[1], dx: real[2], {_SIZES}")


class _Saved(NamedTuple):
    x: Array
    mean: Array
    mean_rest: Array
    """The rounding error of the mean; it counts where the mean is much larger than the deviation."""
    rstd: Array
    gain: Array | None
    divisor: int
    shape: tuple[int, ...]


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              unbiased: bool = False) -> str | None:
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _statistics(rows: Array, divisor: int, eps: float, threads: int) -> tuple[Array, Array]:
    """Mean and variance of each channel in float64, from those of the blocks."""
    count, width = rows.shape
    means, squares = (np.empty((channels.blocks(count, width), width)) for _ in range(2))
    _moments(rows, means, squares, eps, count, width, threads)
    counts = np.full(len(means), channels.block_rows(width), np.float64)
    counts[-1] = count - counts[:-1].sum()
    mean = counts @ means / count
    return mean, (squares.sum(axis=0) + counts @ (means - mean) ** 2) / divisor


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             unbiased: bool) -> tuple[tuple[Array, Array, Array], _Saved]:
    rows = host.as_rows(x)
    divisor, threads = len(rows) - unbiased, native.threads_for(rows.nbytes)
    exact_mean, variance = _statistics(rows, divisor, eps, threads)
    mean = exact_mean.astype(x.dtype)
    mean_rest, rstd = (exact_mean - mean).astype(x.dtype), (1 / np.sqrt(variance + eps)).astype(x.dtype)
    y = host.empty_like(rows)
    _normalise(rows, mean, mean_rest, rstd if gain is None else rstd * gain,
               None if bias is None else np.ascontiguousarray(bias), y, *rows.shape, threads)
    return (y.reshape(x.shape), mean, variance.astype(x.dtype)), (
        _Saved(rows, mean, mean_rest, rstd, gain, divisor, x.shape))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    x, mean, mean_rest, rstd, gain, divisor, shape = saved
    gout, d_mean, d_variance = gouts
    dy = np.zeros_like(x) if gout is None else np.ascontiguousarray(gout).reshape(x.shape)
    dy_parts, along_parts = (np.empty((channels.blocks(*x.shape), x.shape[1]), x.dtype) for _ in range(2))
    threads = native.threads_for(x.nbytes)
    _gradient_sums(x, dy, mean, mean_rest, dy_parts, along_parts, *x.shape, threads)
    d_bias, d_gain = host.added_up(dy_parts), host.added_up(along_parts) * rstd
    dx = None
    if needs[0]:
        scale = rstd if gain is None else rstd * gain
        # The variance depends on x along x - mean, which is xhat / rstd.
        direction = -scale * d_gain / divisor
        constant = -scale * d_bias / len(x)
        if d_variance is not None:
            direction = direction + d_variance * (2 / divisor) / rstd
        if d_mean is not None:
            constant = constant + d_mean / len(x)
        dx = host.empty_like(x)
        _image_gradient(x, dy, mean, mean_rest, rstd, scale, direction, constant, dx, *x.shape, threads)
    return [None if dx is None else dx.reshape(shape),
            d_gain if needs[1] else None, d_bias if needs[2] else None]


def attach() -> None:
    """Add the rule to `batch_norm`."""
    batch_norm.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
