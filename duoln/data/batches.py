"""Batches as a pure function of the step number, so that every backend and every resumed run sees the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from duoln.errors import DataError, DtypeError, ShapeError, UsageError
from duoln.randomness import Stream

Batch = dict[str, np.ndarray]


class Batches:
    """Batches of rows in a new random order each epoch.

    `batches(step)` is a dict of rows of each array. An epoch has `len(rows) // batch_size` steps; the rows
    left over are other ones each epoch, so every batch has one shape.

    Raises:
        ShapeError: arrays of different lengths.
        UsageError: a batch larger than the data.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], batch_size: int, seed: int) -> None:
        lengths = {name: len(a) for name, a in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ShapeError(f"[Batches] expected arrays of one length, found {lengths}")
        self.rows = next(iter(lengths.values()))
        if not 1 <= batch_size <= self.rows:
            raise UsageError(f"[Batches] expected a batch_size between 1 and {self.rows}, found {batch_size}")
        self.arrays, self.batch_size, self.seed = dict(arrays), batch_size, seed
        self.steps_per_epoch = self.rows // batch_size
        self._order: tuple[int, np.ndarray] | None = None

    def __call__(self, step: int) -> Batch:
        """The batch of one step, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, Stream(self.seed, "batches", epoch).permutation(self.rows))
        chosen = self._order[1][position * self.batch_size:(position + 1) * self.batch_size]
        return {name: a[chosen] for name, a in self.arrays.items()}


Axes = Mapping[str, int | None]
"""Along which axis of an array of a batch the examples stand; 0 where an array is not named, None for an array that is
no row of examples."""


def count_examples(batch: Batch, axes: Axes) -> int:
    """How many examples a batch has.

    Raises:
        ShapeError: its arrays disagree, or have too few axes.
    """
    found = {name: array.shape[axis:axis + 1] for name, array in batch.items()
             if (axis := axes.get(name, 0)) is not None}
    if len(set(found.values())) != 1 or () in found.values():
        told = ", ".join(f"{name} {'none' if not n else n[0]}" for name, n in found.items())
        raise ShapeError(f"[batch_axes] expected one number of examples in all arrays of a batch, found {told}")
    return next(iter(found.values()))[0]


def examples(batch: Batch, axes: Axes, chosen: slice | np.ndarray) -> Batch:
    """Some of the examples of a batch; an array that is no row of examples stays whole."""
    def part(name: str, array: np.ndarray) -> np.ndarray:
        axis = axes.get(name, 0)
        return array if axis is None else np.ascontiguousarray(array[(slice(None),) * axis + (chosen,)])

    return {name: part(name, array) for name, array in batch.items()}


def check_range(name: str, indices: np.ndarray, size: int) -> np.ndarray:
    """The indices as int32, once they are known to lie in 0 .. size - 1.

    Devices do not check: CuPy wraps round and MLX reads stray memory.

    Raises:
        DataError: one does not; the message names the first.
        DtypeError: they are no integers.
    """
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"[{name}] expected integers, found {indices.dtype}")
    bad = np.flatnonzero((indices < 0) | (indices >= size))
    if len(bad):
        raise DataError(f"[{name}] expected indices in 0 .. {size - 1}, found {indices.reshape(-1)[bad[0]]} "
                        f"at position {bad[0]}")
    return indices.astype(np.int32)
