"""The bytes and operations that the norm of a sum needs in the benchmarks; its shapes are RMS norm's."""

from __future__ import annotations

from duoln.kernels.layer_norm import cases as layer_norm
from duoln.kernels.rms_norm import cases as rms_norm
from duoln.kernels.rms_norm.cases import SHAPES, SMALL

__all__ = ["SHAPES", "SMALL", "bytes_moved", "layer_norm_flops", "rms_norm_flops"]

_FORWARD_UNITS = 4
"""Read x and the residual, write the sum and y."""
_BACKWARD_UNITS = 2
"""Read dy, write one gradient for both; the sum may still be in a cache, and so may its own gradient, which is the
residual in the benchmark."""


def bytes_moved(rows: int, width: int, backward: bool, itemsize: int = 4) -> int:
    """The least number of bytes that a run reads and writes, without gain, bias and what is kept of a row. Each array
    counts once, since a cache may have it when it is read again.

    Args:
        rows, width: the shape.
        backward: whether the run computes the gradient too.
        itemsize: bytes of a value.
    """
    return (_FORWARD_UNITS + (_BACKWARD_UNITS if backward else 0)) * rows * width * itemsize


def layer_norm_flops(rows: int, width: int, backward: bool) -> int:
    """As those of layer norm, and one addition per value each way."""
    return layer_norm.flops(rows, width, backward) + (2 if backward else 1) * rows * width


def rms_norm_flops(rows: int, width: int, backward: bool) -> int:
    """As those of RMS norm, and one addition per value each way."""
    return rms_norm.flops(rows, width, backward) + (2 if backward else 1) * rows * width
