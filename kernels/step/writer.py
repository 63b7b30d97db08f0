"""The text of a table: statements between runs of launches, and the words of these launches."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Never

import numpy as np

from duoln.core.step.program import FunctionText, Place, Program
from duoln.core.step.symbol import Buffer, NotBound, Symbol
from duoln.core.step.trace import KernelLine, NumpyLine, Trace, UnboundLine, copied_into
from duoln.errors import CompileError
from duoln.kernels import host
from duoln.kernels.native.loading import library
from duoln.kernels.step.arena import assign_offsets
from duoln.kernels.step.tracing import Returned, buffers_of, symbols_among

_FILE = "step/run.cpp"
_COLUMNS = 6
"""Words of a line: the function, its words, the references among them, how many, the count of failures, its taker."""
_NUMBERED = ("input", "result", "returned")


class Writer(FunctionText):
    """The text of a table's function, and its words."""

    def __init__(self, program: Program, trace: Trace, values: dict[Place, Any], times: bool = False) -> None:
        super().__init__({f"v{place}": x for place, x in enumerate(program.constants)})
        self._program, self._values, self._trace = program, values, trace
        self.known = self._known
        self.known |= {"backend": program.backend, "view": np.ndarray, "address": host.address, "empty": np.empty,
                       "fitted": _in_recorded_layout, "apart": _copy_if_shared, "copyto": np.copyto,
                       "places": host.places}
        self.views: dict[str, tuple[int, np.ndarray]] = {}
        """The arrays in the arena by their names, with their places and forms."""
        self._times = times
        self._names: dict[Any, str] = {}
        self._renew_results()
        own = {buffer for line in trace.lines for buffer in buffers_of(line, program, values) if buffer.kind == "own"}
        self._at, self.size = assign_offsets(list(own))
        self._number_sources()
        self._lay_words()
        self._write()

    def _renew_results(self) -> None:
        """Let own arrays that are results be new memory at each call."""
        self._new: list[Buffer] = []
        for place in self._program.results:
            x = self._values[place]
            if type(x) is Symbol and x.buffer.kind in ("own", "result") and x.buffer not in self._new:
                x.buffer.kind, x.buffer.number = "result", len(self._new)
                self._new.append(x.buffer)

    # Words ------------------------------------------------------------------------------------------------
    def _number_sources(self) -> None:
        """A number for each memory whose address a launch needs: the arena is 0, inputs come first."""
        needed = {symbol.buffer for line in self._trace.lines if isinstance(line, KernelLine)
                  for symbol in symbols_among(line.words)}
        order = sorted((b for b in needed if b.kind in _NUMBERED), key=lambda b: (_NUMBERED.index(b.kind), b.number))
        self._source = {buffer: k for k, buffer in enumerate(order, 1)}
        self._read = [b.number for b in order if b.kind == "input"]
        self.sources = np.zeros(1 + len(order), np.int64)

    def _lay_words(self) -> None:
        """The words of all launches, and where in them addresses are put before a call."""
        self._words: list[int] = []
        self._references: list[int] = []
        self._nested: list[tuple[int, int]] = []
        lines = []
        for line in self._trace.lines:
            if isinstance(line, KernelLine):
                first, begin = len(self._references) // 3, self._row(line.words)
                count = len(self._references) // 3 - first
                lines.append([line.entry.address, begin, first, count, *line.entry.failures])
        words = np.array(self._words, np.int64)
        references = np.array(self._references, np.int64).reshape(-1, 3)
        for at, target in self._nested:
            words[at] = host.address(words) + 8 * target
        table = np.array(lines, np.int64).reshape(-1, _COLUMNS)
        table[:, 1] = host.address(words) + 8 * table[:, 1]
        table[:, 2] = host.address(references) + 24 * table[:, 2]
        self.name_for((words, references, table, self.sources))
        self._table, self._at_words = host.address(table), host.address(words)

    def _row(self, row: Sequence[Any]) -> int:
        """Lay out one row; returns its place."""
        begin = len(self._words)
        self._words += [0] * len(row)
        for at, word in enumerate(row, begin):
            if type(word) is Symbol and word.buffer.kind != "constant":
                at_source = self._source.get(word.buffer, 0)
                offset = word.offset + (self._at[word.buffer] if word.buffer.kind == "own" else 0)
                self._references += [8 * at, at_source, offset]
            elif type(word) is Symbol:
                self._words[at] = host.address(word.buffer.array) + word.offset
            elif type(word) is tuple:
                self._nested.append((at, self._row(word)))
            elif isinstance(word, np.ndarray):
                self.name_for(word)
                self._words[at] = host.address(word)
            elif type(word) is float:
                self._words[at] = struct.unpack("q", struct.pack("d", word))[0]
            else:
                self._words[at] = 0 if word is None else int(word)
        return begin

    # Statements -------------------------------------------------------------------------------------------
    def _write(self) -> None:
        run, take = _functions()
        sources = host.address(self.sources)
        self.known |= {"run": run, "take": take, "failed": _failed, "S": self.sources}
        if self._read:
            given = "".join([f"v{k}, " for k in self._read])
            self.lines += [f"P = places(({given}))", f"take({sources + 8}, address(P), {len(self._read)})"]
        for k, buffer in enumerate(self._new):
            self.lines.append(f"r{k} = empty({buffer.form.shape}, {self.name_for(buffer.form.dtype)})")
            self._place_of(buffer, f"r{k}")
        entries = [line.entry.name for line in self._trace.lines if isinstance(line, KernelLine)]
        first = count = 0
        self._held: dict[Buffer, set[str]] = {}
        """The names that hold what a call returned."""
        if self._times:
            self.known["clock"] = time.perf_counter
            self.lines.append("ticks = [clock()]")
        for k, line in enumerate(self._trace.lines):
            if isinstance(line, KernelLine):
                count += 1
                is_last = k + 1 == len(self._trace.lines) or not isinstance(self._trace.lines[k + 1], KernelLine)
                if not (is_last or self._times):
                    continue
                at = self._table + 8 * _COLUMNS * first
                self.lines += [f"F = run({at}, {count}, {self._at_words}, {sources})",
                               f"if F >= 0: failed({self.name_for(entries)}[{first} + F])"]
                first, count = first + count, 0
            elif isinstance(line, NumpyLine):
                self.lines.append(self._computed(line))
            else:
                self._called(line)
            if self._times:
                self.lines.append("ticks.append(clock())")
            over = [b for b in self._held if b.last <= k]
            if over:
                self.lines.append(f"del {', '.join([name for b in over for name in sorted(self._held.pop(b))])}")

    def _place_of(self, buffer: Buffer, name: str) -> None:
        if buffer in self._source:
            self.lines.append(f"S[{self._source[buffer]}] = address({name})")

    def _computed(self, line: NumpyLine) -> str:
        given = [self._operand(x) for x in line.inputs]
        out = self._operand(line.out)
        if line.options is not None:
            axes, dtype, keepdims = line.options
            options = f"{axes}, {self.name_for(dtype)}, {out}, keepdims={keepdims}"
            return f"{self.name_for(line.function)}({given[0]}, {options})"
        if line.function is copied_into:
            return f"copyto({out}, {given[0]}, 'unsafe')"
        return f"{self.name_for(line.function)}({', '.join(given)}, out={out})"

    def _operand(self, x: Any) -> str:
        """The expression of an array or a number."""
        if type(x) is not Symbol:
            return repr(x) if type(x) in (int, bool) else self.name_for(x)
        buffer, form = x.buffer, x.form
        key = buffer, x.offset, form.shape, form.strides, form.dtype
        if key in self._names:
            return self._names[key]
        if buffer.kind == "own":
            name = self.name_for(None)
            self.views[name] = self._at[buffer] + x.offset, form
        elif buffer.kind == "constant":
            whole = buffer.array
            name = self.name_for(whole if (form.shape, form.strides) == (whole.shape, whole.strides)
                                 else np.ndarray(form.shape, form.dtype, whole, x.offset, form.strides))
        else:
            name = f"{'r' if buffer.kind == 'result' else 'v'}{buffer.number}"
            whole = buffer.form
            if x.offset or (form.shape, form.strides, form.dtype) != (whole.shape, whole.strides, whole.dtype):
                view = f"x{len(self._names)}"
                self.lines.append(f"{view} = view({form.shape}, {self.name_for(form.dtype)}, {name}, {x.offset}, "
                                  f"{form.strides})")
                self._hold(buffer, view)
                name = view
        self._names[key] = name
        return name

    def _called(self, line: UnboundLine) -> None:
        """The statements of an instruction that is not bound."""
        one = self._program.instructions[line.of]
        for place in one.reads():
            x = self._values.get(place)
            if not (x is None or type(x) in (Symbol, Returned) or self._program.constants[place] is not None):
                raise NotBound(f"a value of Python, {type(x).__name__}, for an instruction that is not bound")
            if type(x) is Symbol and self._program.constants[place] is None:
                name = self._operand(x)
                if name != f"v{place}":
                    self.lines.append(f"v{place} = {name}")
                    self._hold(x.buffer, f"v{place}")
        self.lines.append(one.text(self.name_for))
        for place in one.writes():
            x = self._values[place]
            self._hold(x.buffer, f"v{place}")
            if type(x) is Symbol:
                self.lines.append(f"v{place} = fitted(v{place}, {x.shape}, {x.strides}, {self.name_for(x.dtype)})")
                self._place_of(x.buffer, f"v{place}")

    def _hold(self, buffer: Buffer, name: str) -> None:
        """Note a name that is to be deleted after the last use of what a call returned."""
        if buffer.kind == "returned":
            self._held.setdefault(buffer, set()).add(name)

    def results(self) -> str:
        """The expression of the results."""
        given = []
        for place in self._program.results:
            x = self._values[place]
            if type(x) is not Symbol:
                raise NotBound("a result that is a constant")
            name = self._operand(x)
            kind = x.buffer.kind
            given.append(f"{name}.copy()" if kind == "constant" else
                         f"apart({name}, M)" if kind == "returned" else name)
        return f"[{', '.join(given)}]"


def _failed(entry: str) -> Never:
    raise MemoryError(f"[{entry}] no memory left for what the kernel needs beside its arrays")


def _in_recorded_layout(x: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """A result of a rule that was not bound: an array in the layout that it had when the step was recorded."""
    x = np.asarray(x)
    if x.shape != shape or x.dtype != dtype:
        raise CompileError(f"[compile] expected a rule's result of {dtype} and shape {shape}, found {x.dtype} and "
                           f"shape {x.shape}")
    if x.strides != strides and x.size and min(strides) >= 0:
        whole = np.empty(1 + sum(step * (n - 1) for step, n in zip(strides, shape, strict=True)) // x.itemsize, dtype)
        out: np.ndarray = np.lib.stride_tricks.as_strided(whole, shape, strides)
        out[...] = x
        return out
    result: np.ndarray = x
    return result


def _copy_if_shared(x: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """A result, or a copy where it lies in memory that the next call uses."""
    return x.copy() if np.may_share_memory(x, memory) else x


@cache
def _functions() -> tuple[Any, Any]:
    """`run_lines` and `take_addresses` of run.cpp. Raises NotBound where nothing is compiled."""
    loaded = library(_FILE, np.dtype(np.float32))
    if loaded is None:
        raise NotBound("no compiled kernels")
    run, take = loaded.run_lines_float32, loaded.take_addresses_float32
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int64
    take.argtypes, take.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return run, take
