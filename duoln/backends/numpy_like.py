"""The primitives of the Protocol for libraries with NumPy's interface: NumPy itself and CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from duoln.backends import OfLibrary, storage
from duoln.backends.protocol import DTYPES, STORAGE, Array, Axis, Shape

INT32 = np.iinfo(np.int32)


class NumpyLikeBackend(OfLibrary):
    """All primitives except those that exchange data with the host; they use the module `xp`."""

    narrow = frozenset([np.dtype(np.float16), storage.BITS])
    wide = frozenset([np.dtype(np.float32), np.dtype(np.float64)])

    def __init__(self, xp: ModuleType) -> None:
        natives = {name: storage.BITS if name == "bfloat16" else np.dtype(name) for name in DTYPES}
        super().__init__(xp, natives, round="rint", concat="concatenate")
        self.xp = xp

    def join(self) -> None:
        """Does nothing: arrays belong to no thread."""

    def begin(self, arrays: Sequence[Array]) -> None:
        """Does nothing: arrays are computed, or their computation has begun."""

    # Creation
    def zeros(self, shape: Shape, dtype: str = "float32") -> Array:
        return self.xp.zeros(shape, self.native_dtype(dtype))

    def ones(self, shape: Shape, dtype: str = "float32") -> Array:
        return self.full(shape, 1.0, dtype)

    def full(self, shape: Shape, value: float, dtype: str = "float32") -> Array:
        native = self.native_dtype(dtype)
        if native == storage.BITS:
            value = int(storage.bits_of(np, np.asarray(value, np.float64)))
        return self.xp.full(shape, value, native)

    def arange(self, stop: int, dtype: str = "int32") -> Array:
        if dtype in STORAGE:
            return self.astype(self.xp.arange(stop, dtype=np.int32), dtype)
        return self.xp.arange(stop, dtype=self.native_dtype(dtype))

    def astype(self, x: Array, dtype: str) -> Array:
        native = self.native_dtype(dtype)
        if x.dtype == native:
            return x.astype(native)
        if x.dtype == storage.BITS:
            x = storage.float32_of(x)
        with storage.converting():
            if dtype not in STORAGE:
                return self._whole(x) if dtype == "int32" and x.dtype.kind == "f" else x.astype(native)
            if native == storage.BITS:
                return storage.bits_of(self.xp, x)
            return storage.round_to_odd(self.xp, x).astype(native)

    def exactly(self, *arrays: Array | int, name: str, compute: Callable[..., Array]) -> Array:
        wide = compute(*(a if isinstance(a, int) else a.astype(np.int64) for a in arrays))
        return self._narrowed(name, wide).astype(np.int32)

    def _whole(self, x: Array) -> Array:
        """Floats without their fractions, as int32."""
        near = self.xp.minimum(self.xp.maximum(x.astype(np.float64), INT32.min), INT32.max)
        return self.xp.where(self.xp.isnan(near), 0.0, near).astype(np.int32)

    def _narrowed(self, name: str, wide: Array) -> Array:
        return self.xp.minimum(self.xp.maximum(wide, INT32.min), INT32.max)

    # Reductions
    def sum(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        dtype = np.int32 if x.dtype == np.bool_ else x.dtype
        return self.xp.sum(x, axis=axis, keepdims=keepdims, dtype=dtype)

    def mean(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return self.xp.mean(x, axis=axis, keepdims=keepdims, dtype=x.dtype)

    def argmax(self, x: Array, axis: int = -1) -> Array:
        return self.xp.argmax(x, axis=axis).astype(np.int32)

    def cumulative_sum(self, x: Array, axis: int) -> Array:
        return self.xp.cumsum(x, axis=axis, dtype=x.dtype)

    # Shape
    def reshape(self, x: Array, shape: Shape) -> Array:
        return x.reshape(shape)

    def permute_dims(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.transpose(axes)

    def pad(self, x: Array, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Array:
        shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
        out = self.full(shape, value, self.dtype(x))
        out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True))] = x
        return out

    # Indexing
    def index_add(self, x: Array, indices: Array, values: Array) -> Array:
        # Rows are sorted, and runs of equal rows are added. In NumPy this is as fast as `add.at`. On a GPU it gives
        # the same bits in every run, which float atomics do not.
        xp, out = self.xp, x.copy()
        if len(indices):
            order = xp.argsort(indices, kind="stable")
            rows = indices[order]
            starts = xp.flatnonzero(xp.concatenate((xp.ones(1, dtype=bool), rows[1:] != rows[:-1])))
            out[rows[starts]] += xp.add.reduceat(values[order], starts, axis=0)
        return out

    def slice_add(self, x: Array, key: Any, values: Array) -> Array:
        out = x.copy()
        out[key] += values
        return out

    # Linear algebra
    def matmul(self, x: Array, y: Array, dtype: str | None = None) -> Array:
        stored = self.dtype(x)
        if stored not in STORAGE:
            return self.xp.matmul(x, y)
        product = self.xp.matmul(self.astype(x, "float32"), self.astype(y, "float32"))
        return product if dtype == "float32" else self.astype(product, stored)
