"""The shapes of layer norm's benchmarks, and the bytes and operations that a run needs, as plain data."""

from __future__ import annotations

Shape = tuple[int, int]
"""Rows, width."""

SHAPES: tuple[Shape, ...] = (
    *((rows, width) for rows in (4096, 16384) for width in (256, 512, 768, 1024, 2048, 4096, 8192)),
    (4096, 16384),
    *((4096, width) for width in (100, 1000, 1600, 2400, 9600)),
    (8, 400), (32, 1024), (128, 256),
)
"""Widths of transformers, widths that no vector length divides, and batches so small that only the launch counts."""

SMALL: tuple[Shape, ...] = ((4096, 256), (4096, 1000), (1024, 4096), (32, 1024))
"""A reduced suite, for a CPU."""

_FORWARD_UNITS = 2
"""Read x, write y."""
_BACKWARD_UNITS = 2
"""Read dy, write dx; x may still be in a cache."""
_FORWARD_FLOPS = 7
"""Per value: add up, subtract the mean, square, add up, scale, gain, bias."""
_BACKWARD_FLOPS = 11
"""Per value: four for dy * gain, its sum, its product with the normalised row and the sum of this product; four for dx;
a product and a sum for the gradient of the gain, a sum for that of the bias."""


def bytes_moved(rows: int, width: int, backward: bool, itemsize: int = 4) -> int:
    """The least number of bytes that a run reads and writes, without gain, bias and two numbers per row. Each array
    counts once, since a cache may have it when it is read again.

    Args:
        rows, width: the shape.
        backward: whether the run computes the gradient too.
        itemsize: bytes of a value.
    """
    return (_FORWARD_UNITS + (_BACKWARD_UNITS if backward else 0)) * rows * width * itemsize


def flops(rows: int, width: int, backward: bool) -> int:
    """Floating-point operations of the formulas, to leading order in the number of values."""
    return (_FORWARD_FLOPS + (_BACKWARD_FLOPS if backward else 0)) * rows * width
