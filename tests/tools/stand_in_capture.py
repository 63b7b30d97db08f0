"""Streams, captures, graphs and memory pools for the stand-in for CuPy.

While a stream captures, nothing runs: each operation is kept with the addresses, shapes and strides of its arrays, as a
CUDA graph keeps them. A launch of the graph first fills the memory of the pools with NaN and then repeats the operations
at these addresses. What CUDA refuses while it captures is an error here: an upload, a copy to the host, a wait, CuPy's own
products. So is a launch that reaches memory that was given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

graphs: list[Graph] = []
"""The graphs that were launched, in order."""


class CUDARuntimeError(RuntimeError):
    """CuPy's name for an error of CUDA."""


full = 0
"""How many of the next allocations the device has no memory for."""


class Memory:
    """Memory of the device, without any."""

    def __init__(self, size: int) -> None:
        global full  # noqa: PLW0603
        if full:
            full -= 1
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")


# Memory -------------------------------------------------------------------------------------------------------

class MemoryPool:
    """Memory in blocks; a block that an array gave back is used again, with what was left in it."""

    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self._allocator = allocator or Memory
        self._blocks: list[np.ndarray] = []
        self._free: dict[int, list[np.ndarray]] = {}

    def malloc(self, size: int) -> Any:
        """CuPy's way to name the pool of a context; arrays come from `array`."""
        raise AssertionError("the stand-in makes arrays by `array`")

    def array(self, shape: Any, dtype: Any) -> np.ndarray:
        """An array with what its memory holds."""
        shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
        size = -(-max(int(np.prod(shape)) * dtype.itemsize, 1) // 512) * 512
        free = self._free.setdefault(size, [])
        if not free:
            try:
                self._allocator(size)
            except CUDARuntimeError:  # as CuPy: once more when what no array uses is given back
                self.free_all_blocks()
                self._allocator(size)
            self._blocks.append(np.full(size, 0xFF, np.uint8))
            free.append(self._blocks[-1])
        block = free.pop()
        owner = (ctypes.c_char * size).from_address(block.ctypes.data)
        weakref.finalize(owner, free.append, block)
        return np.frombuffer(owner, dtype, int(np.prod(shape))).reshape(shape)

    def poison(self) -> None:
        """Fill all of it with NaN."""
        for block in self._blocks:
            block[:] = 0xFF

    def owner_of(self, address: int) -> object | None:
        """What lives as long as the memory at an address; None if it is not the pool's."""
        return next((b for b in self._blocks if b.ctypes.data <= address < b.ctypes.data + b.nbytes), None)

    def free_bytes(self) -> int:
        return 1 << 20

    def free_all_blocks(self) -> None:
        """Give back what no array has; a pool does so by itself where the device has no more memory."""
        given_back = {id(block) for blocks in self._free.values() for block in blocks}
        self._blocks = [block for block in self._blocks if id(block) not in given_back]
        for blocks in self._free.values():
            blocks.clear()


_pools: list[MemoryPool] = []
"""The pools of the contexts that this code is in."""


@contextlib.contextmanager
def using_allocator(allocator: Any) -> Iterator[None]:
    """Within this context what is captured takes its memory from a pool."""
    _pools.append(allocator.__self__)
    try:
        yield
    finally:
        _pools.pop()


class Place(NamedTuple):
    """What a graph knows of an array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: weakref.ref[Any]

    @classmethod
    def of(cls, array: np.ndarray) -> Place:
        return cls(array.__array_interface__["data"][0], array.shape, array.strides, array.dtype,
                   weakref.ref(memory_of(array)))

    def array(self) -> np.ndarray:
        if self.owner() is None:
            raise CUDARuntimeError("a graph reaches memory that was given back")
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + self.dtype.itemsize
        memory = (ctypes.c_char * (high - low)).from_address(self.address + low)
        return np.ndarray(self.shape, self.dtype, memory, -low, self.strides)


def memory_of(array: np.ndarray) -> Any:
    """What lives as long as the memory of an array: the pool's block, or the array that owns it."""
    last = array
    while isinstance(last.base, np.ndarray):
        last = last.base
    address = array.__array_interface__["data"][0]
    for pool in (Capture.begun.pools if Capture.begun else ()):
        block = pool.owner_of(address)
        if block is not None:
            return block
    if last.flags.owndata:
        return last
    return next((root for root in _addressed.values() if _start(root) <= address < _start(root) + root.nbytes), last)


_addressed: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""Arrays that own memory of which an address was asked for."""


def note_address(array: np.ndarray) -> None:
    """The address of this array was asked for, so an operation may come that knows nothing else."""
    root = memory_of(array)
    if isinstance(root, np.ndarray):
        _addressed[id(root)] = root


def _start(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# Streams ------------------------------------------------------------------------------------------------------

class Event:
    """An event; without a device it only knows when it was recorded."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.disable_timing, self.at = disable_timing, 0.0

    def record(self, stream: Any = None) -> None:
        import time

        self.at = time.perf_counter()

    def synchronize(self) -> None:
        refuse("a wait for an event")


_numbers = itertools.count(1)


class Stream:
    """A stream; what is queued on it has run at once, unless it captures."""

    def __init__(self, non_blocking: bool = False, null: bool = False) -> None:
        self.ptr = 0 if null else 16 * next(_numbers)
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        _streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _streams.pop()

    def synchronize(self) -> None:
        refuse("a wait for a stream")

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return Capture.begun is not None and Capture.begun.stream is self

    def wait_event(self, event: Event) -> None:
        pass

    def begin_capture(self, mode: int | None = None) -> None:
        if not self.ptr:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if Capture.begun is not None:
            raise CUDARuntimeError("cudaErrorIllegalState: another capture has begun")
        Capture.begun = Capture(self)

    def end_capture(self) -> Graph:
        ended, Capture.begun = Capture.begun, None
        if ended is None or ended.stream is not self:
            raise CUDARuntimeError("cudaErrorIllegalState: this stream has not begun a capture")
        if ended.refused:
            raise CUDARuntimeError(f"cudaErrorStreamCaptureInvalidated: {ended.refused}")
        return Graph(ended)


_streams = [Stream(null=True)]


def current_stream() -> Stream:
    """The stream of the context."""
    return _streams[-1]


# Captures -----------------------------------------------------------------------------------------------------

class Capture:
    """What a stream has captured so far."""

    begun: Capture | None = None

    def __init__(self, stream: Stream) -> None:
        self.stream, self.refused = stream, ""
        self.pools = list(_pools)
        self.operations: list[Callable[[], object]] = []


class Graph:
    """Operations on addresses, and the pools whose memory they use."""

    def __init__(self, capture: Capture) -> None:
        self._operations = capture.operations
        self._pools = [weakref.ref(pool) for pool in capture.pools]

    def launch(self, stream: Any = None) -> None:
        graphs.append(self)
        for pool in self._pools:
            alive = pool()
            if alive is None:
                raise CUDARuntimeError("the pool of a graph is gone")
            alive.poison()
        with np.errstate(all="ignore"):
            for operation in self._operations:
                operation()


def capturing() -> Capture | None:
    """The capture of the current stream."""
    begun = Capture.begun
    return begun if begun is not None and begun.stream is current_stream() else None


def refuse(what: str) -> None:
    """Raise if the current stream captures: CUDA cannot capture this."""
    capture = capturing()
    if capture is not None:
        capture.refused = what
        raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing: {what}")


def room(shape: Any, dtype: Any) -> np.ndarray:
    """An array for a result of the capture, with NaN in it."""
    if not _pools:
        raise AssertionError("a capture allocates outside a pool: the memory would be used again while the graph lives")
    array = _pools[-1].array(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array


def keep(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Keep an operation that writes into its arguments."""
    capture = capturing()
    assert capture is not None
    frozen, named = freeze(args), freeze(kwargs)
    capture.operations.append(lambda: function(*thaw(frozen), **thaw(named)))


def through(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function of arrays gives: now, or room for it where it is captured."""
    if capturing() is None:
        return function(*args, **kwargs)
    with np.errstate(all="ignore"):
        example = function(*args, **kwargs)
    if isinstance(example, np.ndarray) and any(example is a or np.may_share_memory(example, a) for a in _arrays(args)):
        return example  # a view
    if not isinstance(example, np.ndarray | np.generic):
        raise TypeError(f"{function} gives {type(example).__name__}: the stand-in captures arrays alone")
    by_columns = example.ndim > 1 and example.flags.f_contiguous and not example.flags.c_contiguous
    result = room(example.shape[::-1], example.dtype).T if by_columns else room(example.shape, example.dtype)

    def fill(filled: np.ndarray, *given: Any, **named: Any) -> None:
        filled[...] = function(*given, **named)

    keep(fill, (result, *args), kwargs)
    return result


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)


def freeze(value: Any) -> Any:
    """Places instead of arrays; numbers and structures keep their values."""
    if isinstance(value, np.ndarray) and not value.dtype.names:
        return Place.of(value)
    if isinstance(value, list | tuple) and not isinstance(value, Place):
        return type(value)([freeze(v) for v in value])
    return {k: freeze(v) for k, v in value.items()} if isinstance(value, dict) else value


def thaw(value: Any) -> Any:
    """Arrays at the places."""
    if isinstance(value, Place):
        return value.array()
    if isinstance(value, list | tuple):
        return type(value)([thaw(v) for v in value])
    return {k: thaw(v) for k, v in value.items()} if isinstance(value, dict) else value
