"""A stand-in for the `cupy` module on NumPy arrays, so that the whole CuPy path runs without a GPU.

Kernels run from their own CUDA text, through `hostgpu`. The module offers only what duoln uses; a name it lacks is
an AttributeError, as a misspelt CuPy name would be. It refuses what real CuPy refuses: NumPy arrays among its own,
iteration over a device array as if it were the host's, scalars of no fixed width as kernel arguments.

Where real CuPy may still differ. `DUOLN_TEST_BACKENDS=numpy,cupy pytest` runs the same tests on a GPU, and
`tests/backends/test_cupy_points.py` is about these points:
    dtypes and order of reductions; what `astype` does to floats; dtypes that differ
    indices out of range: CuPy wraps round, NumPy raises
    strides, which RawKernel ignores; here they are an error
    the width of numbers in a launch
    errors that come later, and memory that is reused while a kernel still runs: nothing here is asynchronous
"""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import hostgpu
import numpy as np

_FUNCTIONS = ["abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "sign", "floor", "isfinite", "isnan", "maximum", "minimum", "where", "logical_and", "logical_or", "logical_not", "sum", "mean", "max", "min", "all", "any", "argmax", "cumsum", "reshape", "transpose", "expand_dims", "squeeze", "broadcast_to", "concatenate", "flip", "take", "take_along_axis", "matmul", "zeros", "ones", "full", "arange", "array", "argsort", "flatnonzero", "ascontiguousarray", "zeros_like", "stack", "searchsorted"]

launches: list[str] = []
"""The kernels that ran, in order: for tests that ask whether one did. Their number is the seed of the next, which
decides the order in which its threads run."""


_addressed: WeakValueDictionary[int, ndarray] = WeakValueDictionary()
"""Arrays that were asked for their address, by it: a kernel may find it in a table."""


class _Pointer:
    device_id = 0

    def __init__(self, array: ndarray) -> None:
        self._array = array

    @property
    def ptr(self) -> int:
        address: int = self._array.__array_interface__["data"][0]
        _addressed[address] = self._array
        return address


class _Device:
    id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<CUDA Device 0>"


class ndarray(np.ndarray):
    """A device array: NumPy's, but for what must not mix with the host."""

    @property
    def data(self) -> Any:
        return _Pointer(self)

    def get(self, out: Any = None, blocking: bool = True) -> Any:
        out[...] = self.view(np.ndarray)
        return out

    @property
    def device(self) -> Any:
        return _Device()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        for given in (*inputs, *kwargs.get("out", ())):
            if type(given) is np.ndarray and given.ndim:
                raise TypeError(f"Unsupported type {type(given)}")
        plain = [a.view(np.ndarray) if isinstance(a, ndarray) else a for a in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(a.view(np.ndarray) for a in kwargs["out"])
        return _device(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        return _device(super().__array_function__(func, kinds, args, kwargs))

    def __getitem__(self, key: Any) -> Any:
        return _device(super().__getitem__(key))


def _device(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return np.asarray(result).view(ndarray)  # CuPy gives arrays of no dimensions where NumPy gives scalars
    if isinstance(result, list | tuple):
        return type(result)(_device(r) for r in result)
    return result


def _on_device(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _device(function(*args, **kwargs))

    return call


def _poisoned(shape: Any, dtype: Any = np.float64) -> ndarray:
    """What `empty` gives: nobody may rely on what is in it."""
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[:] = 0xFF
    return made.view(ndarray)


def _poisoned_like(x: ndarray) -> ndarray:
    """The same, in the order of `x`: as CuPy's `empty_like`, it gives columns where it is given columns."""
    plain = x.view(np.ndarray)
    made = np.empty_like(plain)
    made[...] = _poisoned(1, plain.dtype).view(np.ndarray)
    return made.view(ndarray)


class CompileException(Exception):
    """CuPy's name for a compiler's error."""


class RawModule:
    """Kernels from a source text, run by `hostgpu`."""

    def __init__(self, code: str, options: tuple[str, ...] = (), enable_cooperative_groups: bool = False) -> None:
        self._code, self._cooperative = code, enable_cooperative_groups
        self._macros = dict(o[2:].partition("=")[::2] for o in options if o.startswith("-D"))

    def get_function(self, name: str) -> Any:
        try:
            program = hostgpu.compile(self._code, self._macros)
        except hostgpu.HostGpuError as error:
            raise CompileException(str(error)) from error
        if name not in program.entries:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: {name}")
        return _Function(program, name, self._cooperative)


class ElementwiseKernel:
    """A kernel of one array and one result, from its operation on a value; `hostgpu` runs it."""

    _OF_C = {"float32": "float", "uint16": "unsigned short"}  # noqa: RUF012

    def __init__(self, given: str, made: str, operation: str, name: str) -> None:
        (kind, value), (self._dtype, result) = given.split(), made.split()
        source, target = self._OF_C[kind], self._OF_C[self._dtype]
        self._name = name
        self._code = (f'extern "C" __global__ void {name}(const {source}* given, {target}* made, int count) {{\n'
                      f"const int k = int(blockIdx.x * blockDim.x + threadIdx.x);\nif (k >= count) return;\n"
                      f"const {source} {value} = given[k];\n{target} {result};\n{operation}\nmade[k] = {result};\n}}")

    def __call__(self, x: ndarray) -> ndarray:
        plain = np.ascontiguousarray(x.view(np.ndarray))
        made = np.empty(x.shape, self._dtype)
        if x.size:
            hostgpu.compile(self._code).launch(self._name, (-(-x.size // 256),), (256,), [plain, made, np.int32(x.size)], seed=len(launches))
        return made.view(ndarray)


class _Function:
    max_dynamic_shared_size_bytes = hostgpu.SHARED_LIMIT

    def __init__(self, program: hostgpu.Program, name: str, cooperative: bool) -> None:
        self._program, self._name, self._cooperative = program, name, cooperative

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
                 shared_mem: int = 0) -> None:
        if not all(n > 0 for n in (*grid, *block)) or np.prod(block) > 1024:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        given = []
        for a in arguments:
            if isinstance(a, ndarray):
                plain = a.view(np.ndarray)
                given.append(plain if plain.flags.writeable else plain.copy())  # NumPy protects what is broadcast
            elif isinstance(a, np.generic):
                given.append(None if isinstance(a, np.uint64) and a == 0 else a)
            else:
                raise TypeError(f"Unsupported type {type(a)}")
        launches.append(self._name)
        self._program.launch(self._name, grid, block, given, shared_mem, len(launches), self._cooperative,
                             most_shared=self.max_dynamic_shared_size_bytes, reachable=list(_in_tables(given)))


def _in_tables(arguments: list[Any]) -> Iterator[np.ndarray]:
    """The arrays whose addresses are in arguments of uint64."""
    tables = [a for a in arguments if isinstance(a, np.ndarray) and a.dtype == np.uint64]
    for address in sorted({int(n) for table in tables for n in table.reshape(-1)}):
        if address in _addressed:
            yield _addressed[address].view(np.ndarray)


class _Stream:
    ptr = 0

    def synchronize(self) -> None:
        pass


class _Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.disable_timing = disable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


def _clip(x: ndarray, least: float, most: float, out: ndarray) -> ndarray:
    return np.clip(x, least, most, out=out)


def make() -> types.ModuleType:
    """The module; put it into sys.modules as "cupy"."""
    module = types.ModuleType("cupy")
    for name in _FUNCTIONS:
        setattr(module, name, _on_device(getattr(np, name)))
    module.add = np.add
    module.clip = _clip
    module.ndarray = ndarray
    module.empty = _poisoned
    module.empty_like = _poisoned_like
    module.RawModule = RawModule
    module.ElementwiseKernel = ElementwiseKernel
    module.__version__ = "14.0.0"
    module.asnumpy = lambda x: np.array(x.view(np.ndarray) if isinstance(x, ndarray) else x)
    properties = {"name": b"stand-in", "major": 0, "minor": 0, "totalGlobalMem": 1 << 30, "multiProcessorCount": 3}
    module.cuda = types.SimpleNamespace(
        alloc_pinned_memory=bytearray, Device=_Device, get_current_stream=_Stream, Event=_Event,
        get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at),
        runtime=types.SimpleNamespace(getDevice=lambda: 0, getDeviceProperties=lambda i: properties, driverGetVersion=lambda: 0,
                                      memGetInfo=lambda: (3 << 28, 1 << 30)))
    module.get_default_memory_pool = lambda: types.SimpleNamespace(free_bytes=lambda: 1 << 20)
    return module
