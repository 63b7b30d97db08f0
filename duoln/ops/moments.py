"""Means and mean squares of values of any size, for the composed rules of the norms.

A mean is subtracted twice, and values are multiplied by a power of two before they are squared. It changes no bit of
the usual results; without it the squares of 1e20 are infinite and those of 1e-25 are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend

LEAST_EPS = 1e-12
"""From this epsilon on, the squares of small values do not count beside it."""
SCALE = {"float32": 2.0**-40, "float64": 2.0**-300}
"""The factor of values before they are squared, with such an epsilon: the sum of n squares is finite for
values below 1e31 / sqrt(n), in float64 below 1e244 / sqrt(n).
"""
_FAR = {"float32": (2.0**30, 2.0**80), "float64": (2.0**240, 2.0**500)}
"""With a smaller epsilon, mean sizes above the first number are divided by the second one, and those below its
reciprocal are multiplied by it.
"""


def centred(be: Backend, x: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array]:
    """The differences from the mean along some axes, which stay, and the mean.

    Without an `eps`, those of equal values are exactly 0: what rounding leaves would be normalised.
    """
    axes = tuple(axes)
    mean = be.mean(x, axis=axes, keepdims=True)
    first = x - mean
    # The rounding of a large mean leaves an offset, which a second subtraction of the mean removes.
    rest = be.mean(first, axis=axes, keepdims=True)
    differences = first - rest
    if not eps:
        low, high = be.min(x, axis=axes, keepdims=True), be.max(x, axis=axes, keepdims=True)
        differences = be.where(low == high, 0.0, differences)
    return differences, mean + rest


def mean_square(be: Backend, x: Array, axes: Sequence[int], eps: float, divisor: int | None = None,
                ) -> tuple[Array, Array | float]:
    """The mean of the squares of `scale` * x along some axes, which stay, and `scale`, a power of two for each mean.

    Args:
        be: the backend.
        x: of any shape.
        axes: where the values of one mean are.
        eps: what is added to the mean square without the scale.
        divisor: what the sum is divided by; the number of values by default.
    """
    axes = tuple(axes)
    dtype = be.dtype(x)
    scale: Array | float = SCALE[dtype]
    if eps < LEAST_EPS:
        far, unit = _FAR[dtype]
        size = be.mean(be.abs(x), axis=axes, keepdims=True)
        one = be.ones(size.shape, dtype)
        scale = be.where(size > far, one / unit, be.where(size < 1 / far, one * unit, one))
    scaled = x * scale
    if divisor is None:
        return be.mean(scaled * scaled, axis=axes, keepdims=True), scale
    return be.sum(scaled * scaled, axis=axes, keepdims=True) / divisor, scale
