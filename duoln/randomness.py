"""Random numbers, made on the host from a counter, so that they are equal on every vendor and in every run.

A stream is named by (seed, name, epoch, step). Its bits come from Philox, whose integers are exact
arithmetic, and become floats by exact scaling, so no library version or device changes them.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np

Shape = tuple[int, ...]


class Stream:
    """Random numbers that depend on the stream's name and on nothing else.

    Drawing advances the stream; two streams of one name draw the same numbers.
    """

    def __init__(self, seed: int, name: str, epoch: int = 0, step: int = 0) -> None:
        self.seed, self.name, self.epoch, self.step = seed, name, epoch, step
        digest = hashlib.sha256(f"{seed}/{name}/{epoch}/{step}".encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))
        self._units = np.random.Generator(self._bits).random

    def child(self, name: str) -> Stream:
        """A separate stream for a part; its numbers do not depend on the draws of other parts."""
        return Stream(self.seed, f"{self.name}.{name}", self.epoch, self.step)

    def uniform(self, shape: Shape, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """float64 values in [low, high), from 53 bits each."""
        unit = self._units(shape)  # (bits >> 11) * 2^-53
        return unit if (low, high) == (0.0, 1.0) else np.asarray(low + (high - low) * unit)

    def gaussian(self, shape: Shape) -> np.ndarray:
        """float64 values of a standard Gaussian, by the transform of Box and Muller."""
        count = prod(shape)
        pairs = (count + 1) // 2
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform((pairs,))))
        angle = 2.0 * np.pi * self.uniform((pairs,))
        both = np.empty((2, pairs))
        np.multiply(radius, np.cos(angle, out=both[0]), out=both[0])
        np.multiply(radius, np.sin(angle, out=both[1]), out=both[1])
        return both.reshape(-1)[:count].reshape(shape)

    def integers(self, high: int, shape: Shape) -> np.ndarray:
        """int64 values in 0 .. high - 1."""
        array: np.ndarray = np.floor(self.uniform(shape, 0.0, high)).astype(np.int64)
        return array

    def permutation(self, n: int) -> np.ndarray:
        """0 .. n - 1 in random order, int64."""
        return np.argsort(self._raw(n), kind="stable")

    def keep_mask(self, shape: Shape, keep: float) -> np.ndarray:
        """float32 mask: 1 with probability `keep`, else 0."""
        return (self.uniform(shape) < keep).astype(np.float32)

    def _raw(self, n: int) -> np.ndarray:
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)
