"""The MLX backend: Apple GPUs through Metal, and `mlx[cpu]` on Linux for tests."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import version
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from duoln.backends import OfLibrary, copy_reason, needs_copy, storage
from duoln.backends.long_sums import sum_over
from duoln.backends.protocol import DTYPES, READS_ON_HOST, STORAGE, Array, Axis, Shape
from duoln.errors import BackendError, CompileError
from duoln.system import limits

_DTYPES = {"float32": mx.float32, "float64": mx.float64, "int32": mx.int32, "bool": mx.bool_, "float16": mx.float16,
           "bfloat16": mx.bfloat16}

_LONG = 64
"""Sums of at least this many values are split into parts."""
_LONG_PRODUCT = 1 << 12
"""Sums of at least this many products are added in float64."""
_REST_OF_E = 5.3182e-17
"""e / math.e - 1."""


class MlxBackend(OfLibrary):
    """Arrays are mlx.core.array. They are lazy: they are computed at `wait` or when they are read."""

    name = "mlx"
    lazy = True
    narrow = frozenset([mx.float16, mx.bfloat16])
    wide = frozenset([mx.float32, mx.float64])

    def __init__(self) -> None:
        super().__init__(mx, _DTYPES, round="round", reshape="reshape", permute_dims="transpose")
        self.on_gpu = mx.default_device() == mx.Device(mx.gpu)
        # Metal has no float64. The CPU stream has it, and gradient checks use it.
        self.dtypes = tuple(name for name in DTYPES if name != "float64" or not self.on_gpu)
        self._process = os.getpid()
        # MLX computes a lazy value only in the thread that made it, except on a stream of this kind. Such a stream
        # needs a lock: one evaluation after the other.
        self._stream = mx.new_thread_unsafe_stream(mx.default_device())
        self._evaluating = threading.Lock()
        self._joined = threading.local()
        facts = mx.device_info()
        self.device = f"{facts.get('device_name', facts.get('architecture', 'unknown'))} " \
                      f"({'Metal' if self.on_gpu else 'MLX on the CPU'})"

    # The edges
    def join(self) -> None:
        """Let this thread compute on the stream that all threads share, so that any of them may read its arrays."""
        if not hasattr(self._joined, "stream"):
            mx.set_default_stream(self._stream)
            self._joined.stream = self._stream

    def asarray(self, host: Any, dtype: str | None = None) -> Array:
        self.join()
        if isinstance(host, mx.array):
            return self.astype(host, dtype) if dtype else host
        values = np.asarray(host)
        # MLX reads neither negative strides nor another byte order.
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(values.shape)
        with storage.converting():
            if dtype == "bfloat16":
                return mx.array(storage.bits_of(np, plain)).view(mx.bfloat16)
            if dtype == "float16" and plain.dtype != np.float16:
                plain = storage.round_to_odd(np, plain).astype(np.float16)
        return mx.array(plain, dtype=self.native_dtype(dtype or values.dtype.name))

    def to_numpy(self, x: Array) -> np.ndarray:
        self._check_process()
        self.join()
        try:
            with self._evaluating:
                return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)
        except (ValueError, RuntimeError) as error:
            if not _is_of_a_trace(error):
                raise
            raise CompileError(READS_ON_HOST) from error

    def shared(self, x: Any) -> Array:
        self.join()
        return mx.from_dlpack(x)

    def exported(self, x: Array, is_old: bool, copy: bool | None) -> Array:
        self.join()
        self.wait([x])
        memory = memoryview(x)
        # PyTorch refuses the byte offset of a scalar within another array, which `contiguous` would keep.
        reason = "a scalar" if not x.ndim else copy_reason(memory.strides or (), memory.itemsize, is_old,
                                                           memory.c_contiguous)
        if needs_copy(reason, copy):
            x = mx.contiguous(x) if x.ndim else mx.where(True, x, x)
            self.wait([x])
        return x

    def begin(self, arrays: Sequence[Array]) -> None:
        self._check_process()
        try:
            with self._evaluating:
                mx.async_eval(list(arrays))
        except (ValueError, RuntimeError) as error:
            if not _is_of_a_trace(error):
                raise

    def wait(self, arrays: Sequence[Array]) -> None:
        self._check_process()
        with self._evaluating:
            mx.eval(list(arrays))

    def end_step(self, arrays: Sequence[Array], figures: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        self.wait([*arrays, *figures])
        return lambda: [self.to_numpy(figure) for figure in figures]

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, which MLX traces once in each thread."""
        traced = threading.local()

        def run(*arrays: Array) -> Any:
            if not hasattr(traced, "here"):
                dropped = vars(self._joined).setdefault("dropped", [])
                dropped.clear()
                traced.here = _Traced(fn, dropped)
            return traced.here.call(*arrays)

        return run

    def repeat(self, run: Callable[..., list[Array]], unchanged: Collection[int]) -> Callable[..., list[Array]]:
        return self.compile(run)

    def clock(self) -> float:
        self._check_process()
        mx.synchronize(self._stream)
        return time.perf_counter()

    def _check_process(self) -> None:
        """Raises BackendError in a forked child: it does not have MLX's threads and would wait for them for ever."""
        if os.getpid() != self._process:
            raise BackendError(f"[mlx] expected the process {self._process}, which loaded MLX, found its forked child "
                               f"{os.getpid()}; start processes with the method 'spawn', or use numpy in them")

    def free_memory(self) -> int:
        limit = mx.device_info().get("max_recommended_working_set_size")
        return max(int(limit) - mx.get_active_memory(), 0) if limit else limits.free_memory()

    def info(self) -> dict[str, str]:
        facts = mx.device_info()
        out = {"library": f"mlx {version('mlx')}", "device": self.device,
               "tf32": os.environ.get("MLX_ENABLE_TF32", "1")}
        if "memory_size" in facts:
            out["memory"] = f"{int(facts['memory_size']) >> 20} MiB"
        return out

    # Creation
    def zeros(self, shape: Shape, dtype: str = "float32") -> Array:
        self.join()
        return mx.zeros(shape, self.native_dtype(dtype))

    def ones(self, shape: Shape, dtype: str = "float32") -> Array:
        self.join()
        return mx.ones(shape, self.native_dtype(dtype))

    def full(self, shape: Shape, value: float, dtype: str = "float32") -> Array:
        return mx.full(shape, self.asarray(value, dtype))  # with a number MLX chooses the dtype itself

    def arange(self, stop: int, dtype: str = "int32") -> Array:
        self.join()
        return mx.arange(stop, dtype=self.native_dtype(dtype))

    def astype(self, x: Array, dtype: str) -> Array:
        self.join()
        if dtype == "int32" and mx.issubdtype(x.dtype, mx.floating):
            wide = x if x.dtype == mx.float64 else x.astype(mx.float32)
            return self.exactly(mx.where(mx.isnan(wide), 0.0, mx.clip(wide, -2.0 ** 31, 2.0 ** 31)), name="astype",
                                compute=lambda whole: whole)
        return (_round_to_odd(x) if dtype in STORAGE else x).astype(self.native_dtype(dtype))

    def exactly(self, *arrays: Array | int, name: str, compute: Callable[..., Array]) -> Array:
        wide = compute(*(a if isinstance(a, int) else a.astype(mx.int64) for a in arrays))
        return mx.clip(wide, -1 << 31, (1 << 31) - 1).astype(mx.int32)

    # Elementwise
    def exp(self, x: Array) -> Array:
        if x.dtype != mx.float64:
            return mx.exp(x)
        # e'^x (1 + (e / e' - 1) x), where e' is e in float64; the products beyond are below its digits.
        return mx.power(mx.array(math.e, mx.float64), x) * (1.0 + _REST_OF_E * mx.clip(x, -800.0, 800.0))

    def sin(self, x: Array) -> Array:
        sine = mx.sin(x) if x.dtype != mx.float64 else _sine_and_cosine_of_float64(x)[0]
        return mx.where(x == 0, x, sine)  # on a CPU MLX's sine of -0 is 0

    def cos(self, x: Array) -> Array:
        return mx.cos(x) if x.dtype != mx.float64 else _sine_and_cosine_of_float64(x)[1]

    def sign(self, x: Array) -> Array:
        return mx.where(mx.isnan(x), x, mx.sign(x))  # MLX's sign of NaN is 0

    def signbit(self, x: Array) -> Array:
        return x.view(mx.int64 if x.dtype == mx.float64 else mx.int32) < 0

    def fmod(self, x: Array, y: Array) -> Array:
        size = mx.remainder(mx.abs(x), mx.abs(y))  # beside another sign, it would be rounded
        return mx.where(self.signbit(x), -size, size)

    # Reductions
    def sum(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        if not x.size:
            x = _nonempty_like(x, axis, 0)
        axes = self._axes_of_a_long_chain(x, axis)
        return sum_over(mx, x, axes, keepdims, _LONG) if axes else mx.sum(x, axis=axis, keepdims=keepdims)

    def mean(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        # MLX's mean multiplies by the rounded reciprocal of the count, so that of ones need not be 1.
        count = prod(n for a, n in enumerate(x.shape) if _is_reduced(a, axis, x.ndim))
        return self.sum(x, axis=axis, keepdims=keepdims) / count

    def _axes_of_a_long_chain(self, x: Array, axis: Axis) -> tuple[int, ...]:
        """The axes of a sum if MLX would add many values one after another, as it does on a CPU; else none."""
        if self.on_gpu or x.size < _LONG:
            return ()
        axes = tuple(a for a in range(x.ndim) if _is_reduced(a, axis, x.ndim))
        return axes if prod(x.shape[a] for a in axes) >= _LONG else ()

    def all(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return mx.all(x if x.size else _nonempty_like(x, axis, True), axis=axis, keepdims=keepdims)

    def any(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return mx.any(x if x.size else _nonempty_like(x, axis, False), axis=axis, keepdims=keepdims)

    def argmax(self, x: Array, axis: int = -1) -> Array:
        if not x.size:  # MLX refuses to search along an axis that has values, too
            return mx.zeros([n for k, n in enumerate(x.shape) if k != axis % x.ndim], mx.int32)
        return mx.argmax(x, axis=axis).astype(mx.int32)

    def cumulative_sum(self, x: Array, axis: int) -> Array:
        return self._run_in_float64(x.dtype, lambda x: mx.cumsum(x, axis=axis), x)

    def _run_in_float64(self, dtype: Any, run: Callable[..., Array], *arrays: Array) -> Array:
        """`run(*arrays)`. A CPU goes through many values one after another: those of float32 are then float64."""
        if self.on_gpu or dtype != mx.float32:
            return run(*arrays)
        return run(*(a.astype(mx.float64) for a in arrays)).astype(dtype)

    # Shape
    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        return mx.concatenate(list(arrays), axis=axis)

    def pad(self, x: Array, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Array:
        return mx.pad(x, list(widths), constant_values=mx.array(value, x.dtype))

    # Indexing
    def take(self, x: Array, indices: Array, axis: int) -> Array:
        if not (x.size and indices.size):  # from an empty array MLX refuses to take, or ends the process
            return mx.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1:]), x.dtype)
        return mx.take(x, indices, axis=axis)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        return mx.take_along_axis(x, indices, axis=axis) if indices.size else mx.zeros(indices.shape, x.dtype)

    def index_add(self, x: Array, indices: Array, values: Array) -> Array:
        if not values.size:
            return x
        return self._run_in_float64(x.dtype, lambda x, values: x.at[indices].add(values), x, values)

    def slice_add(self, x: Array, key: Any, values: Array) -> Array:
        return x.at[key].add(values)

    # Linear algebra
    def matmul(self, x: Array, y: Array, dtype: str | None = None) -> Array:
        """The product. On a GPU MLX adds up the products of 16-bit values in float32 itself."""
        if x.dtype not in (mx.float16, mx.bfloat16) or (self.on_gpu and dtype is None):
            return self._run_in_float64(x.dtype, mx.matmul, x, y) if x.shape[-1] >= _LONG_PRODUCT else mx.matmul(x, y)
        product = self.matmul(x.astype(mx.float32), y.astype(mx.float32))
        return product if dtype == "float32" else product.astype(x.dtype)


class _Traced:
    """A function as MLX traces it in one thread.

    MLX ends the process if a thread still has a trace when Python has ended, and it forgets a trace only if that is
    dropped in its own thread. Thread-local objects are dropped there, before a `join` of the thread returns. A trace
    that another thread drops is left in `dropped`, a list of its own thread.
    """

    def __init__(self, fn: Callable[..., Any], dropped: list[Any]) -> None:
        self.call = mx.compile(fn)
        self._thread, self._dropped = threading.get_ident(), dropped

    def __del__(self) -> None:
        if threading.get_ident() != self._thread:
            self._dropped.append(self.call)


# On a CPU MLX computes exp, sin and cos of float64 in float32, but powers and tangents in float64.

def _sine_and_cosine_of_float64(x: Array) -> tuple[Array, Array]:
    """sin(x) = 2 t / (1 + t^2) and cos(x) = (1 - t^2) / (1 + t^2), where t = tan(x / 2)."""
    t = mx.tan(0.5 * x)
    whole = 1.0 + t * t
    return 2.0 * t / whole, (1.0 - t) * (1.0 + t) / whole


def _round_to_odd(x: Array) -> Array:
    """Values whose rounding to 16 bits by MLX, through float32, is that of `x`; see `storage.round_to_odd`."""
    if x.dtype == mx.int32:  # beyond 24 bits: one bit tells whether any of the lowest eight is set
        lowest = mx.bitwise_and(x, 0xFF)
        return mx.where(mx.abs(x) >= 1 << 24, x - lowest + 0x80 * (lowest != 0).astype(mx.int32), x)
    if x.dtype != mx.float64:
        return x
    near = x.astype(mx.float32)
    wide = near.astype(mx.float64)
    is_inexact = mx.logical_and(wide != x, mx.logical_not(mx.isnan(x))).astype(mx.uint32)
    is_beyond = (mx.abs(wide) > mx.abs(x)).astype(mx.uint32)
    return mx.bitwise_or(near.view(mx.uint32) - is_inexact * is_beyond, is_inexact).view(mx.float32)


def _is_of_a_trace(error: Exception) -> bool:
    """True if MLX refused to compute an array of a step that it traces, which has no values yet."""
    return str(error).startswith(("[eval]", "[async_eval]"))


def _is_reduced(position: int, axis: Axis, ndim: int) -> bool:
    return axis is None or position in [a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))]


def _nonempty_like(x: Array, axis: Axis, value: float) -> Array:
    """In place of an empty array one whose reduction is `value`: over an empty one MLX 0.32.4 can hang on a CPU."""
    return mx.full([max(n, 1) if _is_reduced(i, axis, x.ndim) else n for i, n in enumerate(x.shape)], value, x.dtype)


def create() -> MlxBackend:
    """The backend object. Raises MLX's exception if it cannot run a kernel."""
    backend = MlxBackend()
    probe = backend.to_numpy(backend.ones((1,)) + 1.0)
    if probe[0] != 2.0:
        raise RuntimeError(f"the probe kernel computed {probe[0]} where 2.0 was expected")
    return backend


def is_traced(x: Any) -> bool:
    """True if x depends on what mx.grad, mx.vjp, mx.jvp, mx.vmap or mx.compile traces.

    MLX runs a compiled function anew for such an array, and what it has kept for another one. It compiles nothing after
    `mx.disable_compile()`, and while it computes a part for `mx.checkpoint` again: then the answer is False.
    """
    if not isinstance(x, mx.array):
        return False
    runs = 0

    def count(x: Array) -> Array:
        nonlocal runs
        runs += 1
        return x

    compiled = mx.compile(count)
    compiled(mx.zeros(()))
    compiled(mx.zeros(()))
    first = runs
    compiled(mx.sum(x.reshape(-1)[:0]).astype(mx.float32))
    return first == 1 and runs == 2
