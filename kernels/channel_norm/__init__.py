"""Norms of channels on the CPU, compiled: batch norm, group norm and instance norm.

Batch norm reads the statistics in one pass, and keeps no normalised values. Of the others a thread reads an example
once from memory, each way; three numbers are kept for each group of an example: the mean, the mean of what is left
after it is subtracted, and rstd.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host
from duoln.kernels.launch import Launch, fused
from duoln.ops import batch_norm, group_norm, instance_norm

_TEXT = "channel_norm/batch_norm"
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


_GROUPS_TEXT = "channel_norm/group_norm"
_PARTS = 64
"""The parts of the gain's and bias's gradients, of examples that follow each other, as in the C++ text."""

_normalise_groups = Launch(_GROUPS_TEXT, "group_norm_forward",
                    "x: real[n, positions, channels], gain: real[channels]?, bias: real[channels]?, groups: int64, "
                    "eps: float64 -> y: like x, stats: real[n, groups, 3]")
_differentiate = Launch(_GROUPS_TEXT, "group_norm_backward",
                        "x: real[n, positions, channels], dy: like x, stats: real[n, groups, 3], "
                        "gain: real[channels]?, groups: int64 "
                        "-> dx: like x?, d_gain: sum[channels], d_bias: sum[channels]",
                        block=lambda count, channels: min(count, _PARTS))


def _rows(be: Backend, x: Array) -> Array:
    """The positions as one axis: (B, ..., channels) -> (B, positions, channels)."""
    return be.reshape(x, (x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))


def _groups_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, groups: int,
             eps: float) -> tuple[Array, tuple[Any, ...]]:
    rows = _rows(be, x)
    y, stats = _normalise_groups[be.name](rows, gain, bias, groups, eps)
    return be.reshape(y, x.shape), (rows, stats, gain, groups)


def _groups_vjp(be: Backend, saved: tuple[Any, ...], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    rows, stats, gain, groups = saved
    dx, d_gain, d_bias = _differentiate[be.name](rows, _rows(be, gout), stats, gain, groups, needs[0])
    return [be.reshape(dx, gout.shape) if needs[0] else None, d_gain if needs[1] else None,
            d_bias if needs[2] else None]


_attached = [fused(batch_norm, _forward, _vjp, _normalise),
             *(fused(op, _groups_forward, _groups_vjp, _normalise_groups) for op in (group_norm, instance_norm))]


def attach(backend: str) -> None:
    """Add the rules to the three operators."""
    for each in _attached:
        each(backend)
