"""Typed launches of CUDA kernels through CuPy.

A RawKernel checks nothing: it ignores strides, passes a Python float as a double, and reads any memory to which an
argument points. A `Kernel` declares its parameters, and a launch that does not fit them raises an error.

    forward = Kernel("layer_norm/layer_norm.cu", "layer_norm_forward",
                     "x: float32[2], gain: float32[1]?, y: float32[2], width: int32, eps: float32")
    forward(grid=(rows,), block=(128,), arguments=(x, None, y, width, 1e-5), macros={"THREADS": 128})

An optional parameter (see `signature`) that is None becomes a null pointer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cupy
import numpy as np

from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.signature import Parameter, parameters

_OPTIONS = ("--std=c++17",)
_STATIC_LIMIT = 48 << 10
"""A kernel must request dynamic shared memory beyond this size."""


class Kernel:
    """One entry point of a source file. The first launch with each set of macros compiles it."""

    def __init__(self, file: str, entry: str, signature: str) -> None:
        self.file, self.entry, self.parameters = file, entry, parameters(signature)
        self._compiled: dict[tuple[tuple[str, int], ...], Any] = {}

    def __call__(self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
                 macros: Mapping[str, int] | None = None, shared: int = 0) -> None:
        """Launch on the current stream.

        Args:
            grid: the number of blocks, one to three numbers.
            block: the number of threads per block, one to three numbers.
            arguments: one for each parameter.
            macros: `-D` settings; each set is compiled separately.
            shared: bytes of dynamic shared memory.

        Raises:
            KernelError: an argument does not fit its declaration; the compiler fails (the message has its log); the
                driver refuses the launch.
        """
        if len(arguments) != len(self.parameters):
            raise KernelError(f"[{self.entry}] expected {len(self.parameters)} arguments, found {len(arguments)}")
        native = [self._checked(p, a) for p, a in zip(self.parameters, arguments, strict=True)]
        function = self.compiled(macros or {})
        if shared > _STATIC_LIMIT:
            function.max_dynamic_shared_size_bytes = shared
        try:
            function(tuple(grid), tuple(block), tuple(native), shared_mem=shared)
        except Exception as error:
            raise KernelError(f"[{self.entry}] {self.file}: launch of grid {tuple(grid)}, block {tuple(block)}, "
                              f"{shared} bytes shared: {error}") from error

    def compiled(self, macros: Mapping[str, int]) -> Any:
        """CuPy's function for these macros.

        Raises:
            KernelError: the compiler fails; the message has the file, the entry, the macros and the compiler's log.
        """
        key = tuple(sorted(macros.items()))
        if key not in self._compiled:
            options = (*_OPTIONS, *(f"-D{name}={value}" for name, value in key))
            try:
                module = cupy.RawModule(code=source.text(self.file), options=options)
                self._compiled[key] = module.get_function(self.entry)
            except Exception as error:
                raise KernelError(f"[{self.entry}] {self.file} with {dict(key)} does not compile:\n{error}") from error
        return self._compiled[key]

    def _checked(self, expected: Parameter, given: Any) -> Any:
        if given is None and expected.optional:
            return np.uint64(0)
        if expected.rank is None:
            if isinstance(given, int | float | np.number) and not isinstance(given, bool):
                value = np.dtype(expected.dtype).type(given)
                if expected.dtype.startswith("float") or value == given:
                    return value
            raise KernelError(f"[{self.entry}] {expected.name}: expected {expected}, found {given!r}")
        if not isinstance(given, cupy.ndarray):
            raise KernelError(f"[{self.entry}] {expected.name}: expected {expected}, found {type(given).__name__}")
        dtype, rank, contiguous = given.dtype.name, given.ndim, given.flags.c_contiguous
        if (dtype, rank, contiguous) != (expected.dtype, expected.rank, True):
            raise KernelError(f"[{self.entry}] {expected.name}: expected {expected}, found "
                              f"a {'contiguous' if contiguous else 'strided'} {dtype} array of {rank} dimensions")
        here = cupy.cuda.Device()
        if given.device != here:
            raise KernelError(f"[{self.entry}] {expected.name}: expected an array on {here}, found one on "
                              f"{given.device}")
        return given


def address(array: Any) -> int:
    """The address of an array on the device; 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def packed(*arrays: Any) -> tuple[Any, ...]:
    """The arrays in contiguous memory, as a kernel needs them: others are copied, and None stays None."""
    return tuple(None if a is None else cupy.ascontiguousarray(a) for a in arrays)


def vector_width(width: int, *arrays: Any) -> int:
    """4 if rows of `width` float32 can be read 16 bytes at a time in all these arrays, else 1."""
    return 4 if width % 4 == 0 and all(address(a) % 16 == 0 for a in arrays) else 1


def multiprocessors() -> int:
    """The number of multiprocessors of the current device."""
    return int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["multiProcessorCount"])


def too_large(*arrays: Any) -> str | None:
    """The reason why a kernel with 32-bit row and column numbers cannot take these arrays; None if it can."""
    largest = max((a.size for a in arrays if a is not None), default=0)
    return f"{largest} values are more than 2^31" if largest >= 1 << 31 else None


_sum_columns = Kernel("columns.cu", "sum_columns", "x: float32[2], sums: float32[1], rows: int32, width: int32")
_ROWS_AT_ONCE = 16


def sum_columns(x: Any) -> Any:
    """The sum of each column of x (rows, width), added in a fixed order."""
    rows, width = x.shape
    sums = cupy.empty(width, dtype=x.dtype)
    _sum_columns((-(-width // 32),), (32, _ROWS_AT_ONCE), (x, sums, rows, width))
    return sums
