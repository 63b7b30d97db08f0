"""Batches as a pure function of the step number, so that every backend and every resumed run sees the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never

import numpy as np

from duoln.core.arguments import check_integer, check_integers_in, described
from duoln.core.pytorch_names import hinted
from duoln.errors import CallError, DataError, DtypeError, ShapeError, UsageError
from duoln.randomness import LARGEST_SEED, Stream

Batch = dict[str, np.ndarray]


class Batches:
    """Batches of rows in a new random order each epoch.

    `batches(step)` is a dict of rows of each array. An epoch has `len(rows) // batch_size` batches, all of one shape;
    the rows that are left out differ from epoch to epoch.

    Args:
        arrays: by name, each with the examples along its first axis.
        batch_size: examples a batch.
        seed: of the order.
        within: for arrays of indices and labels, `(low, stop)`: every value is at least `low` and below `stop`. All
            are checked here, once; a device does not.

    Raises:
        ShapeError: arrays of different lengths, or none; a seed below 0 or above 2^64 - 1.
        DtypeError: what is no array.
        UsageError: a batch larger than the data. DataError: a value that is not within its range.
    """

    @hinted
    def __init__(self, arrays: Mapping[str, np.ndarray], batch_size: int, seed: int,
                 within: Mapping[str, tuple[int, int]] | None = None) -> None:
        lengths = _lengths(arrays)
        if len(set(lengths.values())) != 1:
            raise ShapeError(f"[Batches] expected arrays of one length, found {lengths or 'none'}")
        _check_within(arrays, {} if within is None else within)
        self.rows = next(iter(lengths.values()))
        batch_size = check_integer("Batches", "batch_size", batch_size)
        seed = check_integer("Batches", "seed", seed, 0, LARGEST_SEED)
        if not 1 <= batch_size <= self.rows:
            raise UsageError(f"[Batches] expected a batch_size between 1 and {self.rows}, found {batch_size}")
        self.arrays, self.batch_size, self.seed = dict(arrays), batch_size, seed
        self.steps_per_epoch = self.rows // batch_size
        self._order: tuple[int, np.ndarray] | None = None

    def __call__(self, step: int) -> Batch:
        """The batch of one update; updates are counted from 0 over all epochs."""
        epoch, position = divmod(check_integer("Batches", "step", step, 0), self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, Stream(self.seed, "batches", epoch).permutation(self.rows))
        chosen = self._order[1][position * self.batch_size:(position + 1) * self.batch_size]
        return {name: a[chosen] for name, a in self.arrays.items()}

    def __iter__(self) -> Never:
        raise _not_indexable_error("iteration over batches")

    def __len__(self) -> Never:
        raise _not_indexable_error("len(batches)")

    def __getitem__(self, key: object) -> Never:
        raise _not_indexable_error("batches[...]")

    def __bool__(self) -> bool:
        return True


def _not_indexable_error(what: str) -> CallError:
    return CallError(f"[Batches] expected a call, batches(step), for steps from 0 over all epochs, found {what}; "
                     "batches.steps_per_epoch is the length of an epoch")


def _lengths(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    if not isinstance(arrays, Mapping):
        raise DtypeError(f"[Batches] expected arrays by name, found {described(arrays)}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise DtypeError(f"[Batches] {name}: expected a NumPy array with examples along its first axis, "
                             f"found {described(array)}")
    return {name: len(array) for name, array in arrays.items()}


def _check_within(arrays: Mapping[str, np.ndarray], within: Mapping[str, tuple[int, int]]) -> None:
    if not isinstance(within, Mapping):
        raise DtypeError(f"[Batches] within: expected ranges by name, found {described(within)}")
    for name, bounds in within.items():
        if name not in arrays:
            raise UsageError(f"[Batches] within: expected names of {', '.join(arrays)}; found {name!r}")
        low, stop = check_pair("Batches", "within", bounds)
        check_range(f"Batches: {name}", arrays[name], stop, low)


Axes = Mapping[str, int | None]
"""The axis of each array along which its examples lie: 0 for an array that is not named, None for an array without
examples."""


def count_examples(batch: Batch, axes: Axes) -> int:
    """The number of examples in a batch.

    Raises:
        ShapeError: its arrays disagree, or have too few axes. DtypeError: an argument is no mapping.
    """
    for role, given in (("batch", batch), ("axes", axes)):
        if not isinstance(given, Mapping):
            raise DtypeError(f"[batch_axes] {role}: expected a mapping by name, found {described(given)}")
    counts = {name: array.shape[axis:axis + 1] for name, array in batch.items()
             if (axis := axes.get(name, 0)) is not None}
    if len(set(counts.values())) != 1 or () in counts.values():
        told = ", ".join(f"{name} {'none' if not n else n[0]}" for name, n in counts.items())
        raise ShapeError(f"[batch_axes] expected one number of examples in all arrays of a batch, found {told}")
    count: int = next(iter(counts.values()))[0]
    return count


def examples(batch: Batch, axes: Axes, chosen: slice | np.ndarray) -> Batch:
    """Some of the examples of a batch; an array without examples stays complete."""
    def part(name: str, array: np.ndarray) -> np.ndarray:
        axis = axes.get(name, 0)
        return array if axis is None else np.ascontiguousarray(array[(slice(None),) * axis + (chosen,)])

    return {name: part(name, array) for name, array in batch.items()}


def check_pair(name: str, role: str, bounds: tuple[int, int]) -> tuple[int, int]:
    """The two ends of a range. Raises DtypeError or ShapeError for anything else."""
    ends = check_integers_in(name, role, bounds)
    if len(ends) != 2:
        raise ShapeError(f"[{name}] {role}: expected (low, stop), found {len(ends)} integers")
    return ends[0], ends[1]


def check_range(name: str, indices: np.ndarray, size: int, low: int = 0) -> np.ndarray:
    """Check that the indices lie in low .. size - 1, and return them as int32.

    Devices do not check: an operator gives NaN for an index that lies outside.

    Raises:
        DataError: an index lies outside; the message names the first one. DtypeError: the indices are no array of
            integers.
    """
    if not isinstance(indices, np.ndarray):
        raise DtypeError(f"[{name}] expected a NumPy array of integers, found {described(indices)}")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"[{name}] expected integers, found {indices.dtype}")
    size, low = check_integer(name, "size", size), check_integer(name, "low", low)
    bad = np.flatnonzero((indices < low) | (indices >= size))
    if len(bad):
        raise DataError(f"[{name}] expected indices in {low} .. {size - 1}, found {indices.reshape(-1)[bad[0]]} "
                        f"at position {bad[0]}")
    return indices.astype(np.int32)
