"""The shapes of the norms' benchmarks, and the bytes and operations that a run needs, as plain data."""

from __future__ import annotations

Shape = tuple[int, int]
"""Rows, width."""

SHAPES: tuple[Shape, ...] = (
    *((rows, width) for rows in (4096, 16384) for width in (256, 512, 768, 1024, 2048, 4096, 8192)),
    (4096, 16384),
    *((4096, width) for width in (100, 1000, 1600, 2400, 9600)),
    (8, 400), (32, 1024), (128, 256),
)
"""The shapes of layer norm: widths of transformers, widths that no vector length divides, and batches so small that
only the launch counts."""
SMALL: tuple[Shape, ...] = ((4096, 256), (4096, 1000), (1024, 4096), (32, 1024))
"""A reduced suite, for a CPU."""

FEW_SHAPES: tuple[Shape, ...] = ((4096, 1024), (4096, 4096), (4096, 8192), (4096, 1000), (2048, 512), (32, 1024))
"""The shapes of the other norms: the same kinds, one or two of each."""
FEW_SMALL: tuple[Shape, ...] = ((4096, 1000), (2048, 512))
"""A reduced suite, for a CPU."""


def bytes_moved(rows: int, width: int, backward: bool, itemsize: int = 4, *, of_sum: bool = False) -> int:
    """The least number of bytes that a run reads and writes, without gain, bias and what is kept of a row. Each array
    counts once, since a cache may have it when it is read again.

    Args:
        rows, width: the shape.
        backward: whether the run computes the gradient too.
        itemsize: bytes of a value.
        of_sum: whether the rows are sums of two arrays.
    """
    forward_units = 4 if of_sum else 2  # read x and, of a sum, the residual; write y and, of a sum, the sum
    backward_units = 2  # read dy, write dx; what was normalised, and the gradient of a sum, may still be in a cache
    return (forward_units + (backward_units if backward else 0)) * rows * width * itemsize


def flops(rows: int, width: int, backward: bool, *, centred: bool = True, of_sum: bool = False) -> int:
    """Floating-point operations of the formulas, to leading order in the number of values.

    Args:
        rows, width: the shape.
        backward: whether the run computes the gradient too.
        centred: whether it is a layer norm.
        of_sum: whether the rows are sums of two arrays.
    """
    # Forward: add up, subtract the mean, square, add up, scale, gain, bias; the mean and the bias are three of them.
    # Backward: four for dy * gain, its sum, its product with the normalised row and the sum of this product; four for
    # dx; a product and a sum for the gradient of the gain, a sum for that of the bias. The mean and the bias are three.
    forward, gradient = (7, 11) if centred else (4, 8)
    return (forward + of_sum + (gradient + of_sum if backward else 0)) * rows * width
