"""The blocks of rows over which `channels.h` adds up each channel."""

from __future__ import annotations

import numpy as np

_LINE_VALUES, _BLOCK_VALUES, _LEAST_LINES = 256, 16_384, 16


def block_rows(channels: int) -> int:
    """How many rows a block has, as in the C++ text."""
    repeats = max(_LINE_VALUES // channels, 1)
    return repeats * max(_BLOCK_VALUES // (repeats * channels), _LEAST_LINES)


def blocks(rows: int, channels: int) -> int:
    """How many blocks some rows have."""
    return -(-rows // block_rows(channels))


def total(parts: np.ndarray) -> np.ndarray:
    """The sum of the blocks' sums, in the parts' dtype."""
    sums: np.ndarray = parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
    return sums
