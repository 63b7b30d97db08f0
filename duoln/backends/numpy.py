"""The NumPy backend: the reference, and the fast path on any CPU."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from duoln.backends import copy_reason, needs_copy, storage
from duoln.backends.long_sums import matmul_in_parts, sum_over
from duoln.backends.numpy_like import INT32, NumpyLikeBackend
from duoln.backends.protocol import READS_ON_HOST, STORAGE, Array, Axis
from duoln.errors import CompileError, DtypeError
from duoln.system import limits, openblas

# The numbers of mallopt's parameters in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30

_BITS = {np.dtype(np.float32): np.dtype(np.uint32), np.dtype(np.float64): np.dtype(np.uint64)}
"""The whole numbers that have as many bits as a float."""
_LONG = 1 << 8
"""Sums of at least this many values are split into parts."""
_LONG_PRODUCT = 1 << 14
"""The largest number of products that one call of BLAS adds."""

_within_step: ContextVar[bool] = ContextVar("within_step", default=False)
"""True inside a compiled step of this thread."""


class NumpyBackend(NumpyLikeBackend):
    """Arrays are numpy.ndarray; every operation is computed immediately."""

    name = "numpy"

    def __init__(self) -> None:
        super().__init__(np)
        self.device = f"{_processor()} ({os.cpu_count()} cores)"
        self._keeps_memory = keep_freed_memory()

    def asarray(self, host: Any, dtype: str | None = None) -> Array:
        if dtype in STORAGE:
            return self.astype(np.asarray(host), dtype)
        return np.array(host, dtype=self.native_dtype(dtype) if dtype else None)

    def to_numpy(self, x: Array) -> np.ndarray:
        if _within_step.get():
            raise CompileError(READS_ON_HOST)
        return np.array(storage.float32_of(x) if x.dtype == storage.BITS else x)

    def shared(self, x: Any) -> Array:
        return _read_only(np.from_dlpack(x))

    def exported(self, x: Array, is_old: bool, copy: bool | None) -> Array:
        if not isinstance(x, np.ndarray):
            reason = "a scalar"
        elif is_old:
            reason = "read-only memory, and a reader that names no version of DLPack"
        else:
            is_aligned = x.flags.aligned
            reason = copy_reason(x.strides, x.itemsize, is_old, True) if is_aligned else "memory that is not aligned"
        return np.array(x, order="C") if needs_copy(reason, copy) else _read_only(x)

    def maximum(self, x: Array, y: Array | float) -> Array:
        if isinstance(y, float) and np.ndim(x):
            y = np.full(x.shape[-1], y, x.dtype)  # with a number instead of an array NumPy takes three times as long
        return np.maximum(x, y)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        if isinstance(x, np.ndarray) and x.ndim and isinstance(condition, np.ndarray) and condition.dtype == np.bool_ \
                and x.dtype in _BITS and isinstance(y, float) and y == 0 and math.copysign(1, y) == 1:
            bits: Array = x.view(_BITS[x.dtype])
            return (bits * condition).view(x.dtype)  # NumPy's where takes 16 times as long
        return np.where(condition, x, y)

    def _whole(self, x: Array) -> Array:
        # With NaN both are NaN, and so is in no interval.
        least, most = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
        if not (least > INT32.min - 1 and most < INT32.max + 1):
            raise DtypeError(f"[astype] expected values that int32 holds, {INT32.min} .. {INT32.max}, found "
                             f"{least if least <= INT32.min - 1 else most:.9g}")
        return x.astype(np.int32)

    def _narrowed(self, name: str, wide: Array) -> Array:
        least, most = (int(wide.min()), int(wide.max())) if wide.size else (0, 0)
        if least < INT32.min or most > INT32.max:
            raise DtypeError(f"[{name}] expected results that int32 holds, {INT32.min} .. {INT32.max}, found "
                             f"{most if most > INT32.max else least}; convert to a float dtype with astype")
        return wide

    def sum(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        is_whole = isinstance(axis, tuple) and len(axis) == x.ndim
        axes = _axes_of_a_long_chain(x, axis) if x.size >= _LONG and not is_whole else ()
        if axes:
            return sum_over(np, x, axes, keepdims, _LONG)
        dtype = np.int32 if x.dtype == np.bool_ else x.dtype
        total: Array = np.add.reduce(x, axis, dtype, keepdims=keepdims)  # type: ignore[call-overload]
        return total

    def mean(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        axes = _axes_of_a_long_chain(x, axis) if x.size >= _LONG else ()
        if not axes:
            return super().mean(x, axis=axis, keepdims=keepdims)
        return sum_over(np, x, axes, keepdims, _LONG) / math.prod(x.shape[a] for a in axes)

    def cumulative_sum(self, x: Array, axis: int) -> Array:
        wide = np.float64 if x.dtype == np.float32 else x.dtype  # the values are added one after another
        return np.cumsum(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)

    def matmul(self, x: Array, y: Array, dtype: str | None = None) -> Array:
        if x.dtype not in _BITS:
            return super().matmul(x, y, dtype)
        return np.matmul(x, y) if x.shape[-1] <= _LONG_PRODUCT else matmul_in_parts(np, x, y, _LONG_PRODUCT)

    def stray_index(self, indices: Array, low: int, stop: int) -> int | None:
        """The largest index that is out of range, else the smallest one."""
        if not indices.size:
            return None
        # As unsigned numbers counted from `low`, smaller indices become large ones, so one pass detects both kinds.
        moved = indices if low == 0 else np.subtract(indices, np.int32(low))
        largest = int(moved.view(np.uint32).max())
        return None if largest < stop - low else (largest + low + (1 << 31)) % (1 << 32) - (1 << 31)

    def wait(self, arrays: Sequence[Array]) -> None:
        """Does nothing, because NumPy has already computed everything."""

    def end_step(self, arrays: Sequence[Array], figures: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        return lambda: [self.to_numpy(figure) for figure in figures]

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with a check: it must not read values on the host, because a backend that traces cannot read them."""
        def step(*args: Any) -> Any:
            token = _within_step.set(True)
            try:
                # The check of the loss detects overflow, as on every backend, so NumPy need not warn.
                with np.errstate(all="ignore"):
                    return fn(*args)
            finally:
                _within_step.reset(token)

        return step

    def repeat(self, run: Callable[..., list[Array]], unchanged: Collection[int]) -> Callable[..., list[Array]]:
        return self.compile(run)

    def clock(self) -> float:
        return time.perf_counter()

    def free_memory(self) -> int:
        return limits.free_memory()

    def info(self) -> dict[str, str]:
        return {
            "library": f"numpy {np.__version__}",
            "device": self.device,
            "blas_core": openblas.loaded_core() or "not OpenBLAS",
            "blas_threads": str(openblas.threads() or "not OpenBLAS"),
            "keeps_freed_memory": "yes" if self._keeps_memory else "no",
        }


def _read_only(x: Array) -> Array:
    view = x.view()
    view.flags.writeable = False
    return view


def _axes_of_a_long_chain(x: Array, axis: Axis) -> tuple[int, ...]:
    """The axes of a sum if NumPy would add many values one after another, else none.

    It adds all values of an array, or those of the axis that is the fastest in memory, in pairs. A broadcast axis that
    is kept comes before the fastest.
    """
    if axis is None or x.dtype not in (np.float32, np.float64):
        return ()
    axes = tuple([a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))])
    if len(axes) == x.ndim or math.prod(x.shape[a] for a in axes) < _LONG:
        return ()
    steps = {abs(x.strides[a]): a for a in range(x.ndim) if x.shape[a] > 1 and (x.strides[a] or a not in axes)}
    return () if steps and axes == (steps[min(steps)],) else axes


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed arrays for the next allocation instead of returning them to the kernel.

    New pages cost more time than the arithmetic of a training step. This works only on Linux with glibc;
    `DUOLN_MALLOPT=0` switches it off. Returns whether it is on.
    """
    if not sys.platform.startswith("linux") or os.environ.get("DUOLN_MALLOPT") == "0":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def create() -> NumpyBackend:
    """The backend object; NumPy works everywhere."""
    return NumpyBackend()
