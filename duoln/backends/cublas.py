"""Products of matrices by NVIDIA's cuBLAS, which is called directly.

CuPy refuses its own calls of cuBLAS while a graph is captured. Here each stream has its own handle and workspace, so
that a product has the same bits in a graph and outside. https://docs.nvidia.com/cuda/cublas/ describes the functions.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.errors import KernelError

Array = Any
"""A cupy.ndarray."""
_PLAIN, _TRANSPOSED = 0, 1
_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16 = 0, 1, 2, 14
"""CUDA's numbers of dtypes (cudaDataType)."""
_IN_FLOAT32, _IN_FLOAT64, _IN_TF32 = 68, 70, 77
"""cuBLAS' numbers of the arithmetic (cublasComputeType_t)."""
_DEFAULT_ALGORITHM = -1
_open = ctypes.CDLL
"""Opens a library by its name."""
_WORKSPACE = 32 << 20
"""Bytes for a handle; cuBLAS advises as many for Hopper and less for older devices."""


class _Kind(NamedTuple):
    """The arguments of a product of matrices of one dtype; bfloat16 arrives as uint16."""

    dtype: int
    arithmetic: int
    one: Any
    zero: Any


def _kinds() -> dict[np.dtype[Any], _Kind]:
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    in_float32 = _IN_TF32 if os.environ.get("CUPY_TF32") == "1" else _IN_FLOAT32
    return {np.dtype(np.float32): _Kind(_FLOAT32, in_float32, one, zero),
            np.dtype(np.float16): _Kind(_FLOAT16, _IN_FLOAT32, one, zero),
            np.dtype(np.uint16): _Kind(_BFLOAT16, _IN_FLOAT32, one, zero),
            np.dtype(np.float64): _Kind(_FLOAT64, _IN_FLOAT64, ctypes.c_double(1), ctypes.c_double(0))}


_KINDS = _kinds()
_SUMS = {np.dtype(np.float16): np.dtype(np.float32), np.dtype(np.uint16): np.dtype(np.float32)}
"""The dtype of the sums, in which a product of 16 bits may be stored too."""


class _Operand(NamedTuple):
    """The last two axes of an array as cuBLAS takes them. It is column-major, so a row-major matrix is plain."""

    array: Array
    transposed: int
    leading: int

    @classmethod
    def of(cls, x: Array) -> _Operand:
        """The operand; an array in which neither rows nor columns are contiguous is copied."""
        (rows, columns), item = x.shape[-2:], x.itemsize
        by_row, by_column = x.strides[-2] // item, x.strides[-1] // item
        if (columns == 1 or by_column == 1) and (rows == 1 or by_row >= columns):
            return cls(x, _PLAIN, by_row if rows > 1 else columns)
        if (rows == 1 or by_row == 1) and (columns == 1 or by_column >= rows):
            return cls(x, _TRANSPOSED, by_column if columns > 1 else rows)
        return cls(cupy.ascontiguousarray(x), _PLAIN, columns)

    @property
    def stride(self) -> ctypes.c_longlong:
        """The values from one matrix to the next."""
        x = self.array
        return ctypes.c_longlong(x.strides[0] // x.itemsize if x.ndim == 3 else 0)


class Cublas:
    """A handle for products on one stream.

    Raises:
        KernelError: cuBLAS refuses.
    """

    def __init__(self, library: Any, stream: int) -> None:
        self.library, self.handle = library, ctypes.c_void_p()
        _check("cublasCreate", library.cublasCreate_v2(ctypes.byref(self.handle)))
        self._workspace = cupy.cuda.alloc(_WORKSPACE)
        _check("cublasSetStream", library.cublasSetStream_v2(self.handle, ctypes.c_void_p(stream)))
        _check("cublasSetWorkspace", library.cublasSetWorkspace_v2(
            self.handle, ctypes.c_void_p(self._workspace.ptr), ctypes.c_size_t(_WORKSPACE)))


class _Product:
    """`out = x @ y` with all arguments prepared but the addresses of x and out.

    Args:
        x: (..., m, k).
        y: (..., k, n).
        out: (..., m, n), contiguous.
        batches: the number of products; their matrices have one stride.
    """

    def __init__(self, x: Array, y: Array, out: Array, batches: int = 1) -> None:
        self._what = f"the product of {x.shape} and {y.shape}"
        if out.shape[-2:] != (x.shape[-2], y.shape[-1]) or not out.flags.c_contiguous:
            raise KernelError(f"cuBLAS: expected contiguous room for {self._what}, found {out.shape} with strides "
                              f"{out.strides}")
        if x.dtype != y.dtype or x.dtype not in _KINDS or out.dtype not in (x.dtype, _SUMS.get(x.dtype)):
            raise KernelError(f"cuBLAS: expected one dtype of {', '.join(map(str, _KINDS))} for {self._what}, found "
                              f"{x.dtype}, {y.dtype} into {out.dtype}")
        left, right = _Operand.of(x), _Operand.of(y)
        cublas, kind, out_kind = handle(), _KINDS[x.dtype], _KINDS[out.dtype].dtype
        self._of = left, right, out, cublas  # they live as long as their addresses are used
        self.x, self.out = ctypes.c_void_p(left.array.data.ptr), ctypes.c_void_p(out.data.ptr)
        m, n, k = out.shape[-2], out.shape[-1], x.shape[-1]
        # Row by row, out is the transposed product, y.T @ x.T, column by column.
        sizes = (cublas.handle, right.transposed, left.transposed, n, m, k, ctypes.byref(kind.one))
        y_place = ctypes.c_void_p(right.array.data.ptr)
        end = kind.arithmetic, _DEFAULT_ALGORITHM
        self._arguments: tuple[Any, ...]
        if batches == 1:
            self._function = cublas.library.cublasGemmEx
            self._arguments = (*sizes, y_place, kind.dtype, right.leading, self.x, kind.dtype, left.leading,
                               ctypes.byref(kind.zero), self.out, out_kind, n, *end)
        else:
            self._function = cublas.library.cublasGemmStridedBatchedEx
            self._arguments = (*sizes, y_place, kind.dtype, right.leading, right.stride, self.x, kind.dtype,
                               left.leading, left.stride, ctypes.byref(kind.zero), self.out, out_kind, n,
                               ctypes.c_longlong(m * n), batches, *end)

    def __call__(self) -> None:
        """Queue the product on the stream for which it was prepared."""
        _check(self._what, self._function(*self._arguments))


class TimeProducts:
    """The products `xs[t] @ y` of the time steps of a sequence, which are checked once.

    Args:
        xs: (T, m, k), contiguous.
        y: (k, n).
        outs: (T, m, n), or (m, n) if the time steps share it; contiguous.

    Raises:
        KernelError: an array is not as described.
    """

    def __init__(self, xs: Array, y: Array, outs: Array) -> None:
        if not xs.flags.c_contiguous or xs.shape[-1] != y.shape[0]:
            raise KernelError(f"cuBLAS: expected contiguous {(*xs.shape[:2], y.shape[0])} beside {y.shape}, found "
                              f"{xs.shape} with strides {xs.strides}")
        self._product = _Product(xs[0], y, outs[0] if outs.ndim == 3 else outs)
        self._x, self._x_step = int(xs.data.ptr), int(xs.strides[0])
        self._out, self._out_step = int(outs.data.ptr), int(outs.strides[0]) if outs.ndim == 3 else 0

    def __call__(self, time_step: int) -> None:
        """Queue the product of a time step.

        Raises:
            KernelError: cuBLAS refuses.
        """
        self._product.x.value = self._x + time_step * self._x_step
        self._product.out.value = self._out + time_step * self._out_step
        self._product()


def _check(what: str, status: int) -> None:
    if status:
        raise KernelError(f"cuBLAS: {what} ended with status {status}")


def multiply(x: Array, y: Array, out: Array | None = None, dtype: np.dtype[Any] | None = None) -> Array:
    """The product of the last two axes; those before are broadcast.

    Args:
        x: (..., m, k), of float32, float64, float16 or the bits of bfloat16.
        y: (..., k, n), of the same dtype.
        out: a contiguous array for the result.
        dtype: of the result, if there is no `out`: that of `x`, or float32 for 16 bits.

    Raises:
        ValueError: the shapes do not fit. KernelError: the dtypes or the room do not, or cuBLAS refuses.
    """
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"matmul: expected as many columns as rows, found shapes {x.shape} and {y.shape}")
    batch = x.shape[:-2] if y.ndim == 2 else np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if out is None:
        out = cupy.empty((*batch, x.shape[-2], y.shape[-1]), dtype=dtype or x.dtype)
    if not out.size:
        return out
    if not x.shape[-1]:
        out.fill(0)
        return out
    if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous:
        x = x.reshape(prod(x.shape[:-1]), x.shape[-1])
        _Product(x, y, out.reshape(len(x), y.shape[-1]))()
    else:
        _Product(_batches(x, batch), _batches(y, batch), out, prod(batch))()
    return out


def _batches(x: Array, batch: tuple[int, ...]) -> Array:
    """(batches, rows, columns), or one matrix if all batches have the same."""
    if prod(x.shape[:-2]) == 1:
        return x.reshape(x.shape[-2:])
    if x.ndim > 3 or x.shape[:-2] != batch or x.strides[0] < 0:
        x = cupy.ascontiguousarray(cupy.broadcast_to(x, (*batch, *x.shape[-2:])))
    return x.reshape(prod(batch), *x.shape[-2:])


def handle() -> Cublas:
    """The handle of the current device and stream.

    Raises:
        KernelError: there is no cuBLAS, or it refuses.
    """
    return _handle_of(int(cupy.cuda.runtime.getDevice()), int(cupy.cuda.get_current_stream().ptr))


@cache
def _handle_of(device: int, stream: int) -> Cublas:
    return Cublas(load(), stream)


@cache
def load() -> Any:
    """The library that CuPy has loaded.

    Raises:
        KernelError: it is not there.
    """
    cupy.cuda.device.get_cublas_handle()  # CuPy loads the library at its first use
    major = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    name = f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}"
    try:
        return _open(name)
    except OSError as error:
        raise KernelError(f"cuBLAS: {name}, which CuPy uses, cannot be loaded: {error}") from None
