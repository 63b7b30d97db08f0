"""Batch norm on the CPU, compiled: the statistics are read in one pass, and the rule keeps no normalised values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host
from duoln.kernels.launch import Launch, fused
from duoln.ops import batch_norm

_TEXT = "batch_norm/batch_norm"
_IMAGES = "x: real[*rows, channels]"
_MEAN = "mean: real[channels], mean_rest: real[channels]"
_LINE_VALUES, _BLOCK_VALUES, _LEAST_LINES = 256, 16_384, 16


def block_rows(channels: int) -> int:
    """The number of rows of a block over which channels.h adds up each channel."""
    repeats = max(_LINE_VALUES // channels, 1)
    return repeats * max(_BLOCK_VALUES // (repeats * channels), _LEAST_LINES)


def blocks(rows: int, channels: int) -> int:
    """The number of blocks of so many rows."""
    return -(-rows // block_rows(channels))


_moments = Launch(_TEXT, "batch_moments", f"{_IMAGES}, blocks: int64, eps: float64 "
                                          "-> means: float64[blocks, channels], squares: float64[blocks, channels]")
_normalise = Launch(_TEXT, "batch_normalise",
                    f"{_IMAGES}, {_MEAN}, scale: real[channels], bias: real[channels]? -> y: like x")
_gradient_sums = Launch(_TEXT, "batch_gradient_sums",
                        f"{_IMAGES}, dy: like x, {_MEAN} -> d_bias: sum[channels], along: sum[channels]",
                        block=blocks)
_image_gradient = Launch(_TEXT, "batch_image_gradient",
                         f"{_IMAGES}, dy: like x, {_MEAN}, rstd: real[channels], scale: real[channels], "
                         "direction: real[channels], constant: real[channels] -> dx: like x")


class _Saved(NamedTuple):
    x: Array
    mean: Array
    mean_rest: Array
    """The rounding error of the mean; it counts where the mean is much larger than the deviation."""
    rstd: Array
    gain: Array | None
    divisor: int


def _statistics(x: Array, rows: int, divisor: int, eps: float) -> tuple[Array, Array]:
    """Mean and variance of each channel in float64, from those of the blocks."""
    width = x.shape[-1]
    means, squares = _moments["numpy"](x, blocks(rows, width), eps)
    counts = np.full(len(means), block_rows(width), np.float64)
    counts[-1] = rows - counts[:-1].sum()
    mean = counts @ means / rows
    return mean, (squares.sum(axis=0) + counts @ (means - mean) ** 2) / divisor


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             unbiased: bool) -> tuple[tuple[Array, Array, Array], _Saved]:
    rows = prod(x.shape[:-1])
    divisor = rows - unbiased
    x = host.contiguous(x)
    exact_mean, variance = _statistics(x, rows, divisor, eps)
    mean = exact_mean.astype(x.dtype)
    mean_rest, rstd = (exact_mean - mean).astype(x.dtype), (1 / np.sqrt(variance + eps)).astype(x.dtype)
    y = _normalise["numpy"](x, mean, mean_rest, rstd if gain is None else rstd * gain, bias)
    return (y, mean, variance.astype(x.dtype)), _Saved(x, mean, mean_rest, rstd, gain, divisor)


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    x, mean, mean_rest, rstd, gain, divisor = saved
    gout, d_mean, d_variance = gouts
    rows = prod(x.shape[:-1])
    dy = host.zeros(x.shape, x.dtype) if gout is None else host.contiguous(gout)
    d_bias, along = _gradient_sums["numpy"](x, dy, mean, mean_rest)
    d_gain = along * rstd
    dx = None
    if needs[0]:
        scale = rstd if gain is None else rstd * gain
        # The variance depends on x along x - mean, which is xhat / rstd.
        direction = -scale * d_gain / divisor
        constant = -scale * d_bias / rows
        if d_variance is not None:
            direction = direction + d_variance * (2 / divisor) / rstd
        if d_mean is not None:
            constant = constant + d_mean / rows
        dx = _image_gradient["numpy"](x, dy, mean, mean_rest, rstd, scale, direction, constant)
    return [dx, d_gain if needs[1] else None, d_bias if needs[2] else None]


attach = fused(batch_norm, _forward, _vjp, _normalise)
