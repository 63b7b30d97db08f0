"""Declared launches of C++ entries, on NumPy's arrays: see `kernels.launch.declared`.

    softmax = launch("softmax/softmax.cpp", "softmax_forward", "x: real[*rows, width], logarithm: int32 -> y: like x")
    y = softmax(x, 0)

An entry also takes the number of threads, last. It writes one part of a sum for each block of rows; the parts are added
in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from duoln.core.spec import Array, Spec
from duoln.core.step.symbol import is_traced, trace, tracing
from duoln.core.step.trace import Entry
from duoln.errors import KernelError
from duoln.kernels import host
from duoln.kernels.launch import declared
from duoln.kernels.native import storage
from duoln.kernels.native.function import NUMBERS, by_words, failures_of
from duoln.kernels.native.loading import NAMES, library, refusal

_LINES = 1 << 16
"""Bytes from which a result begins on a cache line, because a vector that lies in two lines takes two loads."""


def launch(file: str, entry: str, declaration: str, block: int | Callable[[int, int], int] = 1) -> Callable[..., Any]:
    """The function that a declaration describes.

    Args:
        file: the C++ text, below `kernels/`, or the whole path of a plug-in's.
        entry: its name without the dtype's ending.
        declaration: arguments and results.
        block: rows of a part of a sum, or how many parts there are of some rows and columns.

    Raises:
        ValueError: the declaration is none.
    """
    spec = Spec.of(declaration)
    storage.count_in(file)
    arrays, axes = declared.arrays_of(spec), declared.axes_of(spec)
    entries = _Entries(file, entry, spec)
    known = {"asarray": np.asarray, "ascontiguousarray": np.ascontiguousarray, "empty": np.empty, "host": host,
             "prod": prod, "find": entries.find, "entries": entries.known, "LINES": _LINES, "misfit": declared.misfit,
             "word": ctypes.c_void_p.from_address, "HEAD": object.__basicsize__,
             "parts_of": block if callable(block) else lambda rows, columns: -(-rows // block)}
    lead = arrays[0]
    reals = [each for each in arrays if each.kind in ("real", "stored")]
    lines = [f"dtype = {reals[0].name}.dtype"]
    if reals[0].optional:
        lines = [f"dtype = ({reals[1].name} if {reals[0].name} is None else {reals[0].name}).dtype"]
    bound = {each.name for each in declared.numbers_of(spec)}
    for each in arrays:
        wanted = "dtype" if each.kind in ("real", "stored") else each.kind.upper()
        lines += declared.taken(each, None if each is reals[0] else wanted, bound)
        if each.axes and len(each.axes) == 1 and each.axes[0][0] == "*":
            # Where an array has no axes, NumPy's arithmetic gives a scalar, which has no pointer to its value.
            is_there = f" and {each.name} is not None" if each.optional else ""
            lines += [f"if not {each.axes[0][1:]}{is_there}:", f"    {each.name} = asarray({each.name})"]
    lines += [_made(each, axes, reals[0].name) for each in spec.outputs]
    large = lead if lead is reals[0] else spec.outputs[0]
    given = [f"{f'None if {each.name} is None else ' if each.optional else ''}word(id({each.name}) + HEAD).value"
             for each in (*arrays, *spec.outputs)]
    given += [*map(declared.size_of, axes), *declared.steps_of(spec), *(n.name for n in declared.numbers_of(spec)),
              f"host.workers() if {large.name}.nbytes >= host.PARALLEL_BYTES else 1"]
    call = ["call, failures, check = entries.get(dtype.char) or find(dtype)", f"call({', '.join(given)})",
            "if failures.value:", "    check()"]
    back = [f"None if {each.name} is None else host.added_up({each.name})" if each.kind == "sum" and each.optional else
            f"host.added_up({each.name})" if each.kind == "sum" else each.name for each in spec.outputs]
    names = [each.name for each in (*arrays, *spec.outputs)]
    words = [*names, *given[len(names):]]
    for place, number in enumerate(declared.numbers_of(spec), len(words) - 1 - len(declared.numbers_of(spec))):
        words[place] = f"{'float' if number.kind[0] == 'f' else 'int'}({number.name})"
    back_line = f"return {', '.join(back)}"
    arguments = f"({''.join(f'{each.name}, ' for each in spec.inputs)})"
    symbolic = declared.function(
        file, entry, spec, [*lines, f"trace().launch(entry_of(dtype), ({', '.join(words)}))", back_line],
        {**known, "empty": host.empty, "ascontiguousarray": host.contiguous, "asarray": lambda x: x, "trace": trace,
         "entry_of": entries.bound})
    flags = "".join(f", {each.name}" for each in spec.outputs if each.optional)
    return declared.function(file, entry, spec, [
        f"if tracing and is_traced({arguments}):", f"    return bound(*{arguments}{flags})", *lines, *call, back_line],
        {**known, "tracing": tracing, "is_traced": is_traced, "bound": symbolic})


def _made(array: Array, axes: list[str], lead: str) -> str:
    """The line that allocates a result; of a large argument `lead` it may be large, too."""
    if array.kind == "sum":
        assert array.axes is not None
        rows = next((axis for axis in axes if axis[0] == "*"), axes[0])
        parts = f"parts_of({declared.size_of(rows)}, {array.axes[-1]})"
        return declared.made(array, f"({parts}, {', '.join(array.axes)})", "dtype")
    if array.like is not None:
        return declared.made(array, f"{array.like}.shape", "dtype",
                             f"(host.empty if {array.like}.nbytes >= LINES else empty)")
    kind = "dtype" if array.kind in ("real", "stored") else array.kind.upper()
    shape = array.axes or ()
    empty = f"(host.empty if {lead}.nbytes >= LINES else empty)" if len(shape) > 2 else "empty"
    return declared.made(array, declared.shape_of(shape), kind, empty)


class _Entries:
    """The entry point of each dtype, looked up at its first call."""

    def __init__(self, file: str, entry: str, spec: Spec) -> None:
        self._file, self._entry = file, entry
        arrays, numbers = declared.arrays_of(spec), declared.numbers_of(spec)
        sizes = len(declared.axes_of(spec)) + len(declared.steps_of(spec))
        self._types = [*[ctypes.c_void_p] * (len(arrays) + len(spec.outputs)), *[ctypes.c_int64] * sizes,
                       *(NUMBERS[each.kind] for each in numbers), ctypes.c_int32]
        self.known: dict[str, tuple[Any, ctypes.c_int32, Callable[[], None]]] = {}

    def find(self, dtype: np.dtype) -> tuple[Any, ctypes.c_int32, Callable[[], None]]:
        """The entry for a dtype. Raises KernelError where there is no library for it, or no such entry in it."""
        loaded = library(self._file, dtype)
        if loaded is None:
            raise KernelError(f"[{self._entry}] {refusal(self._file, dtype)}")
        function = getattr(loaded, f"{self._entry}_{NAMES[dtype.char]}", None)
        if function is None:
            raise KernelError(f"[{self._entry}] expected the entry {self._entry}_{NAMES[dtype.char]} in {self._file}, "
                              "found none")
        function.restype, function.argtypes = None, self._types
        failures, take = failures_of(loaded)

        def check() -> None:
            if take():
                raise MemoryError(f"[{self._entry}] no memory left for what the kernel needs beside its arrays")

        self.known[dtype.char] = function, failures, check
        return self.known[dtype.char]

    def bound(self, dtype: np.dtype) -> Entry:
        """The entry that takes words, see `native.function.by_words`."""
        return by_words(self._file, self._entry, dtype)
