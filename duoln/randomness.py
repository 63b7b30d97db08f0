"""Random numbers, made on the host from a counter, so that they are equal on every vendor and in every run.

A stream is named by (seed, name, epoch, step). Its bits come from Philox, whose integers are exact
arithmetic, and become floats by exact scaling, so no library version or device changes them.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np

from duoln.system.cores import in_threads

Shape = tuple[int, ...]

_BLOCK = 4
"""Philox makes so many numbers at once."""
_TOGETHER = 1 << 12
"""Threads get multiples of so many numbers: NumPy's vectors begin at the same ones for any number of threads."""
_WORTH_THREADS, _PAIRS_WORTH_THREADS = 1 << 17, 1 << 15
"""Uniform numbers, and pairs of Gaussian ones, below which a second thread costs more than it saves."""


class Stream:
    """Random numbers that depend on the stream's name and on nothing else.

    Drawing advances the stream; two streams of one name draw the same numbers.
    """

    def __init__(self, seed: int, name: str, epoch: int = 0, step: int = 0) -> None:
        self.seed, self.name, self.epoch, self.step = seed, name, epoch, step
        digest = hashlib.sha256(f"{seed}/{name}/{epoch}/{step}".encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))

    def child(self, name: str) -> Stream:
        """A separate stream for a part; its numbers do not depend on the draws of other parts."""
        return Stream(self.seed, f"{self.name}.{name}", self.epoch, self.step)

    def uniform(self, shape: Shape, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """float64 values in [low, high), from 53 bits each."""
        unit = np.empty(shape)
        self._fill(unit.reshape(-1))
        return unit if (low, high) == (0.0, 1.0) else np.asarray(low + (high - low) * unit)

    def gaussian(self, shape: Shape) -> np.ndarray:
        """float64 values of a standard Gaussian, by the transform of Box and Muller."""
        count = prod(shape)
        pairs = (count + 1) // 2
        u, v, both = self.uniform((pairs,)), self.uniform((pairs,)), np.empty((2, pairs))

        def transform(first: int, last: int) -> None:
            part = slice(first, last)
            radius, angle = np.sqrt(-2.0 * np.log1p(-u[part])), 2.0 * np.pi * v[part]
            for out, turned in zip(both, (np.cos(angle), np.sin(angle)), strict=True):
                np.multiply(radius, turned, out=out[part])

        if pairs < _PAIRS_WORTH_THREADS:
            transform(0, pairs)
        else:
            in_threads(pairs, _TOGETHER, transform)
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

    def _fill(self, out: np.ndarray) -> None:
        """The next numbers of [0, 1), (bits >> 11) * 2^-53. Threads have copies of the counter, each at its place."""
        draw = np.random.Generator(self._bits).random
        if out.size < _WORTH_THREADS:
            draw(out=out)
            return
        rest = out[-self._bits.state["buffer_pos"] % _BLOCK:]
        draw(out=out[:out.size - rest.size])  # those of a block that was begun
        begin, size = self._bits.state, rest.size

        def fill(first: int, last: int) -> None:
            bits = np.random.Philox(0)
            bits.state = begin
            bits.advance(first // _BLOCK)
            np.random.Generator(bits).random(out=rest[first:last])
            if last == size:
                self._bits.state = bits.state

        in_threads(size, _TOGETHER, fill)

    def _raw(self, n: int) -> np.ndarray:
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)
