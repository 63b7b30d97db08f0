"""NumPy: arrays with few channels at many positions, as rows that each hold many positions.

A pass that combines each position with a vector of channels consists of short loops. If the vector is repeated along a
row, the loops are long, and BLAS computes the sums over the rows.
"""

from __future__ import annotations

import numpy as np


class Lines:
    """Arrays of one shape as rows of `repeats` positions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.repeats, self.channels = shape[-2] if len(shape) > 2 else 1, shape[-1]

    def of(self, x: np.ndarray) -> np.ndarray:
        """The rows of an array of the shape."""
        return np.ascontiguousarray(x).reshape(-1, self.repeats * self.channels)

    def along(self, channels: np.ndarray) -> np.ndarray:
        """A value for each channel, repeated along a row."""
        return np.tile(channels, self.repeats)

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """The sum of each channel over all positions."""
        line = np.ones(len(rows), rows.dtype) @ rows
        channels: np.ndarray = line.reshape(self.repeats, self.channels).sum(axis=0)
        return channels
