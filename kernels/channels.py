"""The blocks of rows over which `channels.h` adds up each channel."""

from __future__ import annotations

_LINE_VALUES, _BLOCK_VALUES, _LEAST_LINES = 256, 16_384, 16


def block_rows(channels: int) -> int:
    """The number of rows of a block, as in the C++ text."""
    repeats = max(_LINE_VALUES // channels, 1)
    return repeats * max(_BLOCK_VALUES // (repeats * channels), _LEAST_LINES)


def blocks(rows: int, channels: int) -> int:
    """The number of blocks of so many rows."""
    return -(-rows // block_rows(channels))
