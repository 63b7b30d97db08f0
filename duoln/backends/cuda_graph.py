"""A function of arrays whose work is captured once and then launched as one CUDA graph.

A graph repeats the same kernels on the same addresses. So its temporary arrays live in a pool of their own; arguments
are copied into fixed arrays before a launch, and results are copied out after it. An argument that comes back in its
own memory, as a parameter that Adam may overwrite, is not copied: a graph is for its address.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import cupy

from duoln.backends import cublas
from duoln.errors import CompileWarning, KernelError

Array = Any
"""A cupy.ndarray."""
_MOST_GRAPHS = 2
"""Graphs of one function, for different addresses. One more takes the place of the oldest."""
_TRIALS = 8
"""With more captures than this, most calls must have found their graph, or none is captured any more."""

_SWITCHED_OFF = "DUOLN_GRAPH is 0"


class _CapturePool:
    """The stream and the memory of the graphs that one stream launches. They run in turn, so they share memory."""

    def __init__(self) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.pool = cupy.cuda.MemoryPool(self._allocate)
        self.failures = 0
        """The number of times that the device had no memory left. CuPy's pool then gives back memory that no array
        uses, also the temporary memory of graphs; it may belong to another array afterwards."""

    def _allocate(self, size: int) -> Any:
        try:
            return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
        except cupy.cuda.runtime.CUDARuntimeError:
            self.failures += 1
            raise


@cache
def _room(device: int, stream: int) -> _CapturePool:
    return _CapturePool()


def refusal() -> str | None:
    """The reason why nothing is captured; None if graphs are used."""
    if os.environ.get("DUOLN_GRAPH") == "0":
        return _SWITCHED_OFF
    try:
        cublas.load()
    except KernelError as error:
        return str(error)
    return None


class GraphedFunction:
    """A function of arrays that runs the same operators at every call.

    The first call with arrays at new addresses runs them and captures them, later ones launch the graph. If they cannot
    be captured, all calls run them, and one CompileWarning says why.

    Args:
        run: takes arrays of one form and returns a list of arrays.
        unchanged: the numbers of the arguments that are results as they come.
    """

    def __init__(self, run: Callable[..., list[Array]], unchanged: Collection[int]) -> None:
        self._run = run
        self._graphs: list[_Graph] = []
        self._unchanged = set(unchanged)
        self._moving: set[int] = set()
        """Unchanged arguments that moved between calls; they are copied like the others."""
        self._captures = self._launches = 0
        self._refusal = refusal()
        if self._refusal not in (None, _SWITCHED_OFF):
            self._warn_refusal()

    def __call__(self, *natives: Array) -> list[Array]:
        if self._refusal is not None:
            return self._run(*natives)
        self._graphs = [graph for graph in self._graphs if graph.has_its_memory()]
        for graph in self._graphs:
            moved = graph.moved(natives)
            if not moved:
                self._launches += 1
                return graph.launch(natives)
            self._moving |= moved if moved <= self._unchanged else set()
        if self._captures >= _TRIALS and self._launches < _TRIALS * self._captures:
            return self._refuse("arguments that are updated in place are at other addresses in most calls", natives)
        if len({x.data.ptr for x in natives if x.nbytes}) < sum(x.nbytes > 0 for x in natives):
            return self._run(*natives)  # one array as two arguments, which it may not be at the next call
        results, self._refusal = self._capture(natives)
        if self._refusal:
            self._warn_refusal()
        return results

    def _capture(self, natives: Sequence[Array]) -> tuple[list[Array], str | None]:
        """The results of this call, and the reason why it cannot be captured."""
        self._captures += 1
        graph = _Graph(self._moving)
        results = graph.run(self._run, natives)
        try:
            graph.capture(self._run)
        except Exception as error:  # whatever it is, nothing was computed, and all calls can run as this one did
            self._graphs.clear()
            return results, f"{type(error).__name__}: {error}"
        self._graphs = [*self._graphs, graph][-_MOST_GRAPHS:]
        return results, None

    def _refuse(self, reason: str, natives: Sequence[Array]) -> list[Array]:
        self._refusal = reason
        self._graphs.clear()
        self._warn_refusal()
        return self._run(*natives)

    def _warn_refusal(self) -> None:
        warnings.warn(f"a compiled step runs operator by operator, not as one CUDA graph: {self._refusal}",
                      CompileWarning, stacklevel=2)


class _Graph:
    """The work of one function for arguments at certain addresses.

    Args:
        moving: the numbers of arguments that are copied, even if they come back.
    """

    def __init__(self, moving: Collection[int]) -> None:
        self._moving = set(moving)
        self._fixed: list[Array] = []
        """The arguments of the graph: those that come back in their own memory, and arrays for copies of the others."""
        self._in_place: list[int] = []
        """The numbers of the arguments that come back in their own memory."""
        self._room, self._launched_on = _room(*_device_and_stream()), _device_and_stream()

    def run(self, run: Callable[..., list[Array]], natives: Sequence[Array]) -> list[Array]:
        """The results for these arguments. It notes which of them come back, and fills the pool with what is needed."""
        cupy.get_default_memory_pool().free_all_blocks()  # of the calls before, which ran outside the pool
        current, stream = cupy.cuda.get_current_stream(), self._room.stream
        stream.wait_event(current.record())
        with stream, cupy.cuda.using_allocator(self._room.pool.malloc):
            made = run(*natives)
        current.wait_event(stream.record())
        place = {_array_key(x): k for k, x in enumerate(natives) if x.nbytes and k not in self._moving}
        self._in_place = sorted({place[_array_key(x)] for x in made if _array_key(x) in place})
        self._fixed = [x if k in self._in_place else cupy.empty_like(x) for k, x in enumerate(natives)]
        self._is_dense = all(a.strides == b.strides for a, b in zip(natives, self._fixed, strict=True))
        return [natives[place[_array_key(x)]] if _array_key(x) in place else _copy(x) for x in made]

    def capture(self, run: Callable[..., list[Array]]) -> None:
        """Capture the work on the fixed arrays.

        Raises:
            KernelError: an argument has gaps between its values. Exception: what CuPy and CUDA raise at work that
                cannot be captured.
        """
        if not self._is_dense:
            raise KernelError("an argument has gaps between its values")
        self._graph, self._made = capture_graph(self._room.stream, self._room.pool, lambda: run(*self._fixed))
        self._failures = self._room.failures
        place = {_array_key(self._fixed[k]): k for k in self._in_place}
        self._results = [(x, place.get(_array_key(x))) for x in self._made]
        """Each result with the number of the argument that it is, if it is one."""
        self._addresses = [self._fixed[k].data.ptr for k in self._in_place]
        self._copied = [(k, x) for k, x in enumerate(self._fixed) if k not in self._in_place and x.nbytes]

    def has_its_memory(self) -> bool:
        """True if the pool has given back no memory since the capture."""
        return self._room.failures == self._failures

    def moved(self, natives: Sequence[Array]) -> set[int]:
        """The numbers of the arguments that are at other addresses than those of the graph; none if it is for these."""
        if self._launched_on != _device_and_stream():
            return set(range(len(natives)))
        return {k for k, address in zip(self._in_place, self._addresses, strict=True) if natives[k].data.ptr != address}

    def launch(self, natives: Sequence[Array]) -> list[Array]:
        """The results for these arguments."""
        for k, x in self._copied:
            x.data.copy_from_device_async(natives[k].data, x.nbytes)
        self._graph.launch()
        return [_copy(x) if k is None else natives[k] for x, k in self._results]


def capture_graph(stream: Any, pool: Any, run: Callable[[], Any]) -> tuple[Any, Any]:
    """The graph of the work that `run` queues, and what `run` returns. The pool has to live as long as the graph.

    Args:
        stream: where the work is captured; one that does not wait for the default stream.
        pool: gives the memory of all arrays that `run` makes.
    """
    with stream, cupy.cuda.using_allocator(pool.malloc):
        cublas.handle()
        stream.begin_capture()
        try:
            made = run()
        except BaseException:
            _abandon(stream)
            raise
        return stream.end_capture(), made


def _array_key(x: Array) -> tuple[int, tuple[int, ...], tuple[int, ...], Any]:
    return x.data.ptr, x.shape, x.strides, x.dtype


def _copy(x: Array) -> Array:
    return x.copy(order="K")


def _device_and_stream() -> tuple[int, int]:
    return int(cupy.cuda.runtime.getDevice()), int(cupy.cuda.get_current_stream().ptr)


def _abandon(stream: Any) -> None:
    """End a capture that went wrong."""
    try:
        stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError:
        return  # the work that cannot be captured has ended it
