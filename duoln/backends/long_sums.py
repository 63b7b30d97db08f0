"""Sums of many values on a CPU, which keep their digits.

NumPy adds the values of an axis one after another, unless the axis is the fastest in memory; on a CPU, MLX does so
along every axis. The sum of a million float32 between 0 and 1 then has a relative error of 2e-5. Here one axis is
summed after the other, and a long one in parts: 5e-7.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from types import ModuleType

from duoln.backends.protocol import Array

__all__ = ["matmul_in_parts", "sum_over"]


def sum_over(xp: ModuleType, x: Array, axes: Sequence[int], keepdims: bool, long: int) -> Array:
    """The sum of `x` over some axes.

    Args:
        xp: NumPy or `mlx.core`.
        x: of any shape.
        axes: counted from the front.
        keepdims: keep the axes, with length 1.
        long: the least number of values of an axis that is summed in parts.
    """
    for axis in sorted(axes, reverse=True):
        x = xp.sum(_partial_sums(xp, x, axis) if x.shape[axis] >= long else x, axis=axis, keepdims=True)
    return x if keepdims else xp.squeeze(x, tuple(axes))


def _partial_sums(xp: ModuleType, x: Array, axis: int) -> Array:
    """About the square root of an axis' length of sums, and the few values that are left."""
    length = x.shape[axis]
    parts = isqrt(length)
    each = length // parts
    before = (slice(None),) * axis
    in_parts = xp.reshape(x[(*before, slice(parts * each))], (*x.shape[:axis], parts, each, *x.shape[axis + 1:]))
    return xp.concatenate([xp.sum(in_parts, axis=axis + 1), x[(*before, slice(parts * each, None))]], axis=axis)


def matmul_in_parts(xp: ModuleType, x: Array, y: Array, most: int) -> Array:
    """`x @ y`, with at most `most` products added at a time."""
    length = x.shape[-1]
    if length <= most:
        return xp.matmul(x, y)
    total = xp.matmul(x[..., :most], y[..., :most, :])
    for first in range(most, length, most):
        total += xp.matmul(x[..., first:first + most], y[..., first:first + most, :])
    return total
