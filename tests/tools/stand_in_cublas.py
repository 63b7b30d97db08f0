"""A stand-in for cuBLAS: matrices by columns at addresses, multiplied by NumPy."""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any

import numpy as np
import stand_in_capture as capture

from duoln.backends import storage

calls: list[str] = []
"""The functions that were called, in order."""
_DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: np.uint16}
_ARITHMETIC = {0: (68, 77), 1: (70,), 2: (68, 77), 14: (68, 77)}
_numbers = itertools.count(1)


class Library:
    """The functions that duoln calls, with the arguments that NVIDIA documents."""

    def __init__(self) -> None:
        self._workspaces: dict[int | None, int | None] = {}

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = next(_numbers)
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert stream.value in (capture.current_stream().ptr, None), "a handle is for the current stream"
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, place: Any, size: Any) -> int:
        assert place.value and place.value % 256 == 0 and size.value, "cuBLAS refuses a workspace at such an address"
        self._workspaces[handle.value] = place.value
        return 0

    def cublasGemmEx(self, handle: Any, left_turned: int, right_turned: int, m: int, n: int, k: int, alpha: Any, left: Any,
                     left_kind: int, left_rows: int, right: Any, right_kind: int, right_rows: int, beta: Any, out: Any,
                     out_kind: int, out_rows: int, arithmetic: int, algorithm: int) -> int:
        calls.append("cublasGemmEx")
        return self._products(handle, (left_turned, right_turned), (m, n, k), (alpha, beta), (left, right, out),
                              (left_kind, right_kind, out_kind), (left_rows, right_rows, out_rows), (0, 0, 0), 1, arithmetic)

    def cublasGemmStridedBatchedEx(self, handle: Any, left_turned: int, right_turned: int, m: int, n: int, k: int, alpha: Any,
                                   left: Any, left_kind: int, left_rows: int, left_stride: Any, right: Any, right_kind: int,
                                   right_rows: int, right_stride: Any, beta: Any, out: Any, out_kind: int, out_rows: int,
                                   out_stride: Any, batches: int, arithmetic: int, algorithm: int) -> int:
        calls.append("cublasGemmStridedBatchedEx")
        strides = left_stride.value, right_stride.value, out_stride.value
        return self._products(handle, (left_turned, right_turned), (m, n, k), (alpha, beta), (left, right, out),
                              (left_kind, right_kind, out_kind), (left_rows, right_rows, out_rows), strides, batches, arithmetic)

    def _products(self, handle: Any, turned: Any, sizes: Any, scales: Any, places: Any, kinds: Any, leading: Any, strides: Any,
                  batches: int, arithmetic: int) -> int:
        m, n, k = sizes
        stored = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n)]
        if handle.value not in self._workspaces or min(m, n, k) < 1 or any(
                rows > lead for (rows, _), lead in zip(stored, leading, strict=True)) or arithmetic not in _ARITHMETIC[kinds[0]]:
            return 7  # CUBLAS_STATUS_INVALID_VALUE
        assert kinds[0] == kinds[1] and kinds[2] in (kinds[0], 0 if kinds[0] in (2, 14) else None)
        assert (scales[0]._obj.value, scales[1]._obj.value) == (1, 0)
        left, right, out = (
            _matrices(place.value, batches, stride, shape, lead, np.dtype(_DTYPES[kind]))
            for place, stride, shape, lead, kind in zip(places, strides, stored, leading, kinds, strict=True))
        if capture.capturing() is None:
            _multiply(*turned, left, right, out)
        else:
            capture.keep(_multiply, (*turned, left, right, out), {})
        return 0


def _matrices(address: int, batches: int, stride: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
    rows, columns = shape
    size = (batches - 1) * stride + (columns - 1) * leading + rows
    memory = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(memory, (batches, rows, columns),
                                           (stride * dtype.itemsize, dtype.itemsize, leading * dtype.itemsize))


def _multiply(left_turned: int, right_turned: int, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    x, y = (_wide(m.swapaxes(1, 2) if turned else m) for m, turned in ((left, left_turned), (right, right_turned)))
    product = x @ y
    out[...] = storage.bits_of(np, product) if out.dtype == storage.BITS else product


def _wide(matrix: np.ndarray) -> np.ndarray:
    if matrix.dtype == storage.BITS:
        return storage.float32_of(matrix)
    return matrix.astype(np.float32) if matrix.dtype == np.float16 else matrix


def loaded() -> None:
    """CuPy loads cuBLAS at its first use. Whoever asks for that opens this library then, under whatever name."""
    library = Library()
    sys._getframe(1).f_globals["_open"] = lambda name: library
