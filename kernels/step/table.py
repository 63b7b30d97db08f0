"""The table of a compiled step on NumPy: its launches, bound to memory, which a call runs one after another.

Rules are traced once (`trace`). What they launch is a row of words for one call of C++; what they compute by NumPy, and
what cannot be traced, are statements of Python between such calls. Values between them lie in an arena, at places that
are used again after their last reader. A table stands for what the program computes only under its conditions, which
each call compares: where they do not hold, the program runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from duoln.backends.protocol import Array
from duoln.core.footprint import sole_owner
from duoln.core.step.program import Program
from duoln.core.step.symbol import NotBound
from duoln.core.step.trace import UnboundLine
from duoln.kernels import host
from duoln.kernels.step.arena import arena
from duoln.kernels.step.tracing import buffers_of, memory_of, row_of, trace_of
from duoln.kernels.step.writer import Writer


class Table:
    """A program bound to memory, for inputs in the layouts of `natives`.

    Args:
        program: what is computed.
        natives: arrays like those of the calls.
        plain: runs the program as it is.

    Raises:
        NotBound: an input or a result has a layout that is not bound.
    """

    def __init__(self, program: Program, natives: Sequence[Array], plain: Callable[..., list[Array]]) -> None:
        if not all(x.flags.c_contiguous for x in natives):
            raise NotBound("an input that is not contiguous")
        with np.errstate(all="ignore"):
            trace, values = trace_of(program, natives)
        self._plain, self._threads, self._apart = plain, host.workers(), trace.apart
        for k, line in enumerate(trace.lines):
            for buffer in buffers_of(line, program, values):
                buffer.note_use(k)
        for buffer in [buffer for place in program.results for buffer in memory_of(values[place])]:
            buffer.note_use(len(trace.lines))
        for line in reversed(trace.lines):
            for buffer in buffers_of(line, program, values) if isinstance(line, UnboundLine) else ():
                for kept in buffer.keeps:
                    kept.note_use(buffer.last)
        self._traced = program, trace, values
        self.rows = [row_of(line, program, values) for line in trace.lines]
        """A row for each line, in order."""
        writer = Writer(program, trace, values)
        self._size, self._known, self._sources = writer.size, writer.known, writer.sources
        self._views = writer.views
        self._run: Callable[..., list[Array]] = writer.function(
            ", ".join(f"v{place}" for place in range(program.inputs)), writer.results(), "<table of a compiled step>")
        self._has_place = False
        arena.enter(self)

    def profile(self, natives: Sequence[Array]) -> list[float]:
        """The seconds of each row, of one call with copies of these inputs, line by line."""
        writer = Writer(*self._traced, times=True)
        _put(writer.known, writer.sources, writer.views, host.empty((writer.size,), np.dtype(np.uint8)))
        arguments = ", ".join(f"v{place}" for place in range(self._traced[0].inputs))
        run = writer.function(arguments, "ticks", "<profile of a compiled step>")
        with np.errstate(all="ignore"):
            ticks: list[float] = run(*[x.copy() for x in natives])
        return [after - before for before, after in pairwise(ticks)]

    def leave(self) -> None:
        """Give up the places in the arena."""
        self._known.update(dict.fromkeys((*self._views, "M")))
        self._has_place = False

    def _move_in(self) -> None:
        arena.reserve(self._size)
        _put(self._known, self._sources, self._views, arena.memory)
        self._has_place = True

    def __call__(self, *natives: Array) -> list[Array]:
        """The results; the inputs have the layouts for which the table was made."""
        if not all([type(x) is np.ndarray for x in natives]):  # a scalar of NumPy has no memory of its own
            natives = tuple([np.asarray(x) for x in natives])
        if not arena.lock.acquire(blocking=False):  # another thread's step has the arena
            return self._plain(*natives)
        try:
            if host.workers() != self._threads or not all([
                    x.flags.writeable and (x.base is None or sole_owner(x) is not None)
                    for x in [natives[k] for k in self._apart]]):
                return self._plain(*natives)
            if not self._has_place:
                self._move_in()
            return self._run(*natives)
        finally:
            arena.lock.release()


def _put(known: dict[str, Any], sources: np.ndarray, views: Mapping[str, tuple[int, np.ndarray]],
         memory: np.ndarray) -> None:
    """Let the names and the launches of a table have their places in this memory."""
    known["M"], sources[0] = memory, host.address(memory)
    for name, (offset, form) in views.items():
        known[name] = np.ndarray(form.shape, form.dtype, memory, offset, form.strides)
