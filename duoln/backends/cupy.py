"""The CuPy backend: NVIDIA GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import cupy
import numpy as np

from duoln.backends import copy_reason, cublas, cuda_graph, needs_copy, storage
from duoln.backends.numpy_like import NumpyLikeBackend
from duoln.backends.protocol import STORAGE, Array
from duoln.errors import KernelError

_COPIED_SINGLY = 8

_bits_of = cupy.ElementwiseKernel("float32 x", "uint16 bits", """
    const unsigned all = __float_as_uint(x);
    const bool is_nan = (all & 0x7fffffffu) > 0x7f800000u;
    bits = (unsigned short)((is_nan ? all | 0x400000u : all + 0x7fffu + (all >> 16 & 1)) >> 16);
""", "duoln_bfloat16_of_float32")
_float32_of = cupy.ElementwiseKernel("uint16 bits", "float32 x", "x = __uint_as_float(unsigned(bits) << 16);",
                                     "duoln_float32_of_bfloat16")


class CupyBackend(NumpyLikeBackend):
    """Arrays are cupy.ndarray on the current CUDA device; work is queued on the current stream."""

    name = "cupy"
    queues = True

    def __init__(self) -> None:
        super().__init__(cupy)
        self._properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.device = self._properties["name"].decode()

    def asarray(self, host: Any, dtype: str | None = None) -> Array:
        if dtype in STORAGE:
            return self.astype(cupy.array(host), dtype)
        return cupy.array(host, dtype=self.native_dtype(dtype) if dtype else None)

    def to_numpy(self, x: Array) -> np.ndarray:
        array: np.ndarray = cupy.asnumpy(x)
        return storage.float32_of(array) if array.dtype == storage.BITS else array

    def shared(self, x: Any) -> Array:
        """The array on the current stream, which waits for the work that the exporter has queued."""
        return cupy.from_dlpack(x)

    def exported(self, x: Array, is_old: bool, copy: bool | None) -> Array:
        reason = copy_reason(x.strides, x.itemsize, is_old, x.flags.c_contiguous)
        return cupy.array(x, order="C") if needs_copy(reason, copy) else x

    def wait(self, arrays: Sequence[Array]) -> None:
        if len(arrays):
            cupy.cuda.get_current_stream().synchronize()

    def end_step(self, arrays: Sequence[Array], figures: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        """Queues copies of the figures, before what later steps queue; only they are waited for."""
        copies = [_pinned(figure) for figure in figures]
        for figure, copy in zip(figures, copies, strict=True):
            figure.get(out=copy, blocking=False)
        copied = cupy.cuda.Event(disable_timing=True)
        copied.record()

        def read() -> list[np.ndarray]:
            copied.synchronize()
            return [storage.float32_of(copy) if copy.dtype == storage.BITS else copy for copy in copies]

        return read

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` itself; its repeated parts are captured, see `repeat`."""
        return fn

    def repeat(self, run: Callable[..., list[Array]], unchanged: Collection[int]) -> Callable[..., list[Array]]:
        return cuda_graph.GraphedFunction(run, unchanged)

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """CuPy uploads the addresses of more than eight arrays, which no graph repeats; there each is copied alone."""
        if len(arrays) <= _COPIED_SINGLY or not cupy.cuda.get_current_stream().is_capturing():
            return cupy.concatenate(arrays, axis=axis)
        axis %= arrays[0].ndim
        shape = [sum(a.shape[axis] for a in arrays) if k == axis else n for k, n in enumerate(arrays[0].shape)]
        joined, end = cupy.empty(shape, dtype=arrays[0].dtype), 0
        for a in arrays:
            start, end = end, end + a.shape[axis]
            joined[(slice(None),) * axis + (slice(start, end),)] = a
        return joined

    def clock(self) -> float:
        cupy.cuda.get_current_stream().synchronize()
        return time.perf_counter()

    def device_seconds(self, run: Callable[[], None]) -> Callable[[], float]:
        """Captures the work that `run` queues as a graph. The result launches it, waits, and gives the seconds that the
        device needed, by its own clock, without the time of Python; for benchmarks.

        Raises:
            KernelError: nothing is captured here. Exception: what CuPy and CUDA raise at work that cannot be captured.
        """
        reason = cuda_graph.refusal()
        if reason is not None:
            raise KernelError(f"[graph] {reason}")
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        cupy.cuda.get_current_stream().synchronize()  # the graph reads arrays that were queued before
        graph, _ = cuda_graph.capture_graph(stream, pool, run)
        first, last = cupy.cuda.Event(), cupy.cuda.Event()

        def seconds() -> float:
            with stream, cupy.cuda.using_allocator(pool.malloc):  # this keeps the pool as long as the graph
                graph.launch()  # while it runs, the next launch is queued
                first.record()
                graph.launch()
                last.record()
            last.synchronize()
            return float(cupy.cuda.get_elapsed_time(first, last)) / 1e3

        return seconds

    def astype(self, x: Array, dtype: str) -> Array:
        """The values in another dtype. Between float32 and bfloat16 it is one kernel, as between dtypes of CuPy."""
        if dtype == "bfloat16" and x.dtype == np.float32:
            return _bits_of(x)
        if dtype == "float32" and x.dtype == storage.BITS:
            return _float32_of(x)
        return super().astype(x, dtype)

    def matmul(self, x: Array, y: Array, dtype: str | None = None) -> Array:
        """The product by cuBLAS, which reads 16 bits as they are stored and adds in float32."""
        return cublas.multiply(x, y, dtype=None if dtype is None else self.native_dtype(dtype))

    def free_memory(self) -> int:
        free, _ = cupy.cuda.runtime.memGetInfo()
        return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def info(self) -> dict[str, str]:
        facts = self._properties
        return {
            "library": f"cupy {cupy.__version__}",
            "device": self.device,
            "compute_capability": f"{facts['major']}.{facts['minor']}",
            "memory": f"{facts['totalGlobalMem'] >> 20} MiB",
            "driver": str(cupy.cuda.runtime.driverGetVersion()),
            "compiler": ".".join(map(str, ("NVRTC", *cupy.cuda.nvrtc.getVersion()))).replace(".", " ", 1),
            "compiled_steps": cuda_graph.refusal() or "one CUDA graph",
            "tf32": os.environ.get("CUPY_TF32", "0"),
        }


def _pinned(x: Array) -> np.ndarray:
    """Pinned memory for an array on the host, to which a device writes asynchronously."""
    memory = cupy.cuda.alloc_pinned_memory(max(x.nbytes, 1))
    return np.frombuffer(memory, x.dtype, x.size).reshape(x.shape)


def create() -> CupyBackend:
    """The backend object. Raises CuPy's exception if no CUDA device can run a kernel."""
    probe = cupy.asnumpy(cupy.ones(1, dtype=np.float32) + np.float32(1))
    if probe[0] != 2.0:
        raise RuntimeError(f"the probe kernel computed {probe[0]} where 2.0 was expected")
    return CupyBackend()
