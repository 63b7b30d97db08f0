"""The shapes of RMS norm's benchmarks, and the bytes and operations that a run needs, as plain data."""

from __future__ import annotations

from duoln.kernels.layer_norm.cases import Shape, bytes_moved

__all__ = ["SHAPES", "SMALL", "bytes_moved", "flops"]

SHAPES: tuple[Shape, ...] = ((4096, 1024), (4096, 4096), (4096, 8192), (4096, 1000), (2048, 512), (32, 1024))
"""Widths of transformers, one that no vector length divides, and a batch so small that only the launch counts."""

SMALL: tuple[Shape, ...] = ((4096, 1000), (2048, 512))
"""A reduced suite, for a CPU."""

_FORWARD_FLOPS = 4
"""Per value: square, add up, scale, gain."""
_BACKWARD_FLOPS = 8
"""Per value: three for dy * gain, its product with the normalised row and the sum of this product; three for dx; a
product and a sum for the gradient of the gain."""


def flops(rows: int, width: int, backward: bool) -> int:
    """Floating-point operations of the formulas, to leading order in the number of values."""
    return (_FORWARD_FLOPS + (_BACKWARD_FLOPS if backward else 0)) * rows * width
