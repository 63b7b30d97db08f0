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
A stream that captures keeps what it is asked to do, see `stand_in_capture`.

STAND_IN_FAULTS names kernels that go wrong, for tests of what happens then: "wrong=NAME hang=NAME end=NAME kill=NAME"
computes a wrong value, never comes back, ends the context (every later call fails), or ends the process. STAND_IN_MAJOR is the
device's generation; of 9 and later there are clusters, if `duoln.system.clusters` says so.
"""

from __future__ import annotations

import operator
import os
import signal
import time
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import stand_in_capture as capture
import stand_in_cublas

from duoln.testing import hostgpu

_FUNCTIONS = ["abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "sign", "signbit", "fmod", "floor", "isfinite", "isnan", "maximum", "minimum", "where", "logical_and", "logical_or", "logical_not", "sum", "mean", "max", "min", "all", "any", "argmax", "cumsum", "cumprod", "rint", "reshape", "transpose", "expand_dims", "squeeze", "broadcast_to", "concatenate", "flip", "take", "take_along_axis", "matmul", "zeros", "ones", "full", "arange", "array", "argsort", "flatnonzero", "ascontiguousarray", "zeros_like", "stack", "searchsorted"]

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
        capture.note_address(self._array.view(np.ndarray))
        return address

    def copy_from_device_async(self, source: _Pointer, size: int) -> None:
        """Copy bytes."""
        pair = self._array.view(np.ndarray), source._array.view(np.ndarray)
        assert size == pair[0].nbytes == pair[1].nbytes and pair[0].strides == pair[1].strides
        if capture.capturing() is None:
            pair[0][...] = pair[1]
        else:
            capture.keep(np.copyto, pair, {})


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

    @property
    def base(self) -> Any:
        """The array of which this is a view; None for one that owns its memory. NumPy's array that holds it is no other."""
        holder: Any = super().base
        return holder.base if type(holder) is np.ndarray else holder

    def get(self, out: Any = None, blocking: bool = True) -> Any:
        capture.refuse("a copy to the host")
        out[...] = self.view(np.ndarray)
        return out

    @property
    def device(self) -> Any:
        return _Device()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        for given in (*inputs, *kwargs.get("out", ())):
            if type(given) is np.ndarray and given.ndim:
                raise TypeError(f"Unsupported type {type(given)}")
        function, plain = getattr(ufunc, method), _plain(inputs)
        if "out" not in kwargs:
            return _device(capture.through(function, plain, kwargs))
        kwargs = {**kwargs, "out": _plain(kwargs["out"])}
        if capture.capturing() is None:
            return _device(function(*plain, **kwargs))
        capture.keep(function, plain, kwargs)
        return kwargs["out"][0].view(ndarray)

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        if capture.capturing() is None:
            return _device(super().__array_function__(func, kinds, args, kwargs))
        return _device(capture.through(func, _plain(args), _plain(kwargs)))

    def __getitem__(self, key: Any) -> Any:
        if capture.capturing() is None:
            return _device(super().__getitem__(key))
        return _device(capture.through(operator.getitem, (self.view(np.ndarray), _plain(key)), {}))

    def __setitem__(self, key: Any, value: Any) -> None:
        if capture.capturing() is None:
            super().__setitem__(key, value)
        else:
            capture.keep(_assign, (self.view(np.ndarray), _plain(key), _plain(value)), {})

    def fill(self, value: Any) -> None:
        self[...] = value


def _assign(array: np.ndarray, key: Any, value: Any) -> None:
    array[key] = value


def _method(name: str) -> Any:
    """A method of arrays that gives an array: now, or when what is captured is launched."""
    function = getattr(np.ndarray, name)
    return lambda self, *args, **kwargs: _device(
        capture.through(function, (self.view(np.ndarray), *_plain(args)), _plain(kwargs)))


def _to_host(name: str) -> Any:
    """A method that reads values, which waits for the device."""
    function = getattr(np.ndarray, name)

    def read(self: Any, *args: Any) -> Any:
        capture.refuse("a copy to the host")
        return function(self.view(np.ndarray), *args)

    return read


for _name in ("astype", "copy", "reshape", "transpose", "sum", "mean", "max", "min", "take", "ravel", "squeeze", "argmax", "any",
              "all", "cumsum"):
    setattr(ndarray, _name, _method(_name))
for _name in ("item", "tolist", "tobytes", "__float__", "__int__", "__bool__", "__index__"):
    setattr(ndarray, _name, _to_host(_name))


def _plain(value: Any) -> Any:
    """NumPy's arrays in the place of device arrays."""
    if isinstance(value, ndarray):
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        return type(value)([_plain(v) for v in value])
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _device(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return np.asarray(result).view(ndarray)  # CuPy gives arrays of no dimensions where NumPy gives scalars
    if isinstance(result, list | tuple):
        return type(result)(_device(r) for r in result)
    return result


def _on_device(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if capture.capturing() is None:
            return _device(function(*args, **kwargs))
        return _device(capture.through(function, _plain(args), _plain(kwargs)))

    return call


def _waiting(function: Any, what: str) -> Any:
    """A function that waits for the device, or copies between it and the host."""
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_context()
        if not any(isinstance(a, ndarray) for a in args) or what != "an upload":
            capture.refuse(what)
        return function(*args, **kwargs)

    return call


def _concatenate(arrays: Any, axis: int = 0) -> Any:
    if len(arrays) > 8:  # CuPy copies the addresses of small arrays to the device
        capture.refuse("an upload")
    return _on_device(np.concatenate)(arrays, axis=axis)


def _matmul(*args: Any, **kwargs: Any) -> Any:
    if capture.capturing() is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    return _device(np.matmul(*args, **kwargs))


def _poisoned(shape: Any, dtype: Any = np.float64) -> ndarray:
    """What `empty` gives: nobody may rely on what is in it."""
    if capture.capturing() is not None:
        return capture.room(shape, dtype).view(ndarray)
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[:] = 0xFF
    return made.view(ndarray)


def _poisoned_like(x: ndarray) -> ndarray:
    """The same, in the order of `x`: as CuPy's `empty_like`, it gives columns where it is given columns."""
    plain = x.view(np.ndarray)
    if capture.capturing() is not None:
        by_columns = plain.ndim > 1 and plain.flags.f_contiguous and not plain.flags.c_contiguous
        shape = plain.shape[::-1] if by_columns else plain.shape
        return (capture.room(shape, plain.dtype).T if by_columns else capture.room(shape, plain.dtype)).view(ndarray)
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

    def __call__(self, x: ndarray) -> Any:
        return _device(capture.through(self._run, (x.view(np.ndarray),), {}))

    def _run(self, x: np.ndarray) -> np.ndarray:
        plain, made = np.ascontiguousarray(x), np.empty(x.shape, self._dtype)
        if x.size:
            hostgpu.compile(self._code).launch(self._name, (-(-x.size // 256),), (256,), [plain, made, np.int32(x.size)], seed=len(launches))
        return made


_ANY_CLUSTER, _MOST_CLUSTER = 14, 16
"""CUDA's number for the attribute that allows clusters of any size; blocks of the largest one."""


def _set_attribute(function: Any, attribute: int, value: int) -> None:
    if attribute != _ANY_CLUSTER or value != 1:
        raise ValueError(f"the stand-in does not know attribute {attribute} with value {value}")
    function.most_cluster = _MOST_CLUSTER


class _Function:
    max_dynamic_shared_size_bytes: int | None = None
    most_cluster = hostgpu.CLUSTER_LIMIT

    def __init__(self, program: hostgpu.Program, name: str, cooperative: bool) -> None:
        self._program, self._name, self._cooperative = program, name, cooperative
        self.kernel = types.SimpleNamespace(ptr=self)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...],
                 shared_mem: int = 0) -> None:
        if not all(n > 0 for n in (*grid, *block)) or np.prod(block) > 1024:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        given = []
        for a in arguments:
            if isinstance(a, ndarray):
                plain = a.view(np.ndarray)
                given.append(plain if plain.flags.writeable or capture.capturing() else plain.copy())  # NumPy protects what is broadcast
            elif type(a) is np.ndarray and a.size == 1:  # CuPy passes its value
                given.append(a)
            elif isinstance(a, np.generic):
                given.append(None if isinstance(a, np.uint64) and a == 0 else a)
            else:
                raise TypeError(f"Unsupported type {type(a)}")
        reachable = list(_in_tables(given))
        if capture.capturing() is None:
            self._launch(grid, block, given, shared_mem, reachable)
        else:
            by_value = [a.copy() if isinstance(a, np.ndarray) and a.dtype.names else a for a in given]
            capture.keep(self._launch, (grid, block, by_value, shared_mem, reachable), {})

    def _launch(self, grid: tuple[int, ...], block: tuple[int, ...], given: list[Any], shared: int,
                reachable: list[np.ndarray]) -> None:
        launches.append(self._name)
        fault = _fault_of(self._name)
        if fault == "hang":
            time.sleep(3600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "end":
            _ended.append(self._name)
        _check_context()
        self._program.launch(self._name, grid, block, given, shared, len(launches), self._cooperative,
                             most_shared=self.max_dynamic_shared_size_bytes, most_cluster=self.most_cluster,
                             reachable=reachable)
        if fault == "wrong":
            declared = self._program.entries[self._name].parameters
            for parameter, a in zip(declared, given, strict=True):  # what is written and what may be scratch alone
                if isinstance(a, np.ndarray) and a.size and a.dtype.kind == "f" and not parameter.constant:
                    a.reshape(-1)[0] += 1


_ended: list[str] = []
"""The kernel that ended the context, if one has."""


def _fault_of(kernel: str) -> str | None:
    """What goes wrong in a kernel."""
    asked = (entry.partition("=") for entry in os.environ.get("STAND_IN_FAULTS", "").split())
    return next((kind for kind, _, name in asked if name == kernel), None)


def _check_context() -> None:
    """After an illegal address every call that needs the device fails."""
    if _ended:
        raise capture.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


def _in_tables(arguments: list[Any]) -> Iterator[np.ndarray]:
    """The arrays whose addresses are in arguments of uint64, and first in structures."""
    tables = [a for a in arguments if isinstance(a, np.ndarray) and a.dtype == np.uint64]
    tables += [a[a.dtype.names[0]] for a in arguments if isinstance(a, np.ndarray) and a.dtype.names]
    for address in sorted({int(n) for table in tables for n in table.reshape(-1)}):
        if address in _addressed:
            yield _addressed[address].view(np.ndarray)


class _Allocated:
    """Memory without an array."""

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size + 256, np.uint8)
        self.ptr = -(-self._memory.ctypes.data // 256) * 256


def _clip(x: ndarray, least: float, most: float, out: ndarray) -> ndarray:
    return np.clip(x, least, most, out=out)  # a ufunc behind it keeps what is captured


def make() -> types.ModuleType:
    """The module; put it into sys.modules as "cupy"."""
    module = types.ModuleType("cupy")
    for name in _FUNCTIONS:
        setattr(module, name, _on_device(getattr(np, name)))
    module.add = np.add
    module.matmul, module.concatenate = _matmul, _concatenate
    module.array, module.flatnonzero = _waiting(module.array, "an upload"), _waiting(module.flatnonzero, "a wait for a count")
    module.from_dlpack = lambda x: np.from_dlpack(x).view(ndarray)
    module.clip = _clip
    module.ndarray = ndarray
    module.empty = _poisoned
    module.empty_like = _poisoned_like
    module.RawModule = RawModule
    module.ElementwiseKernel = ElementwiseKernel
    module.__version__ = "14.0.0"
    module.asnumpy = _waiting(lambda x: np.array(_plain(x)), "a copy to the host")
    properties = {"name": b"stand-in", "major": int(os.environ.get("STAND_IN_MAJOR", "0")), "minor": 0, "totalGlobalMem": 1 << 30, "multiProcessorCount": 3,
                  "sharedMemPerBlockOptin": 227 << 10}
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0, getDeviceProperties=lambda i: properties, driverGetVersion=lambda: 0, runtimeGetVersion=lambda: 0,
        memGetInfo=lambda: (3 << 28, 1 << 30), CUDARuntimeError=capture.CUDARuntimeError)
    module.cuda = types.SimpleNamespace(
        alloc=_Allocated, alloc_pinned_memory=bytearray, Device=_Device, get_current_stream=capture.current_stream,
        Event=capture.Event, Stream=capture.Stream, MemoryPool=capture.MemoryPool, Memory=capture.Memory, MemoryPointer=lambda memory, offset: memory,
        nvrtc=types.SimpleNamespace(getVersion=lambda: (0, 0)), using_allocator=capture.using_allocator,
        get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at), runtime=runtime,
        device=types.SimpleNamespace(get_cublas_handle=stand_in_cublas.loaded),
        driver=types.SimpleNamespace(funcSetAttribute=_set_attribute))
    default = capture.MemoryPool()
    module.get_default_memory_pool = lambda: default
    return module
