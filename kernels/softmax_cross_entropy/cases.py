"""The shapes of softmax cross-entropy's benchmarks, and the bytes and operations that a run needs, as plain data."""

from __future__ import annotations

Shape = tuple[int, int]
"""Rows, classes."""

SHAPES: tuple[Shape, ...] = ((128, 10), (65536, 10), (4096, 1000), (4096, 10000), (4096, 32000))
"""Digits at the paper's batch and as a full data set, ImageNet's classes, and two vocabularies."""

SMALL: tuple[Shape, ...] = ((128, 10), (4096, 1000), (512, 10000))
"""A reduced suite, for a CPU."""

_LABEL_BYTES = 4
_FORWARD_FLOPS = 4
"""Per logit: compare with the largest, subtract it, exponentiate, add up."""
_BACKWARD_FLOPS = 3
"""Per logit: divide by the sum, subtract the label's one, multiply by the row's gradient."""


def bytes_moved(rows: int, width: int, backward: bool, itemsize: int = 4) -> int:
    """The least number of bytes that a run reads and writes.

    Forward reads logits and labels and writes one loss per row. Backward reads the gradient of the losses and writes
    the gradient of the logits. Each array counts once, since a cache may have it when it is read again.
    """
    forward = rows * (width * itemsize + _LABEL_BYTES + itemsize)
    return forward + (rows * (width * itemsize + itemsize) if backward else 0)


def flops(rows: int, width: int, backward: bool) -> int:
    """Floating-point operations of the formulas; an exponential counts as one."""
    return (_FORWARD_FLOPS + (_BACKWARD_FLOPS if backward else 0)) * rows * width
