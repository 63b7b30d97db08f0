"""A launch of a compiled kernel, declared once: straight-line Python that checks, allocates and calls.

    normalise = launch("norm/norm.cpp", "layer_norm_forward",
                       "x: real[*rows, width], gain: real[width]?, eps: float64 -> y: like x, rstd: real[*rows]")
    y, rstd = normalise(x, gain, 1e-5)

The language is that of `core.spec`. A launch takes the arguments of the declaration in their order, and returns its
results, one alone or a tuple. It makes inputs contiguous and checks their shapes and dtypes; it owns what it allocates.
The entry of the C++ text gets all arrays, those of the arguments first; then the size of each axis, in the order in
which the axes appear, `*rows` being the product of its sizes; then the numbers, and the number of threads.
Of an optional result, `dx: like x?`, the launch takes `dx=False`, and returns None. Of a sum, `d_gain: sum[width]`, the
entry writes one part for each block of rows, and the launch adds them in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from duoln.core.call import compiled
from duoln.core.spec import Array, Spec
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import host
from duoln.kernels.native import storage
from duoln.kernels.native.loading import NAMES, failure, library

NUMBERS: dict[str, Any] = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
                           "float64": ctypes.c_double}
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
    arrays = [each for each in spec.inputs if not each.is_number]
    numbers = [each for each in spec.inputs if each.is_number]
    entries = _Entries(file, entry, len(arrays) + len(spec.outputs), spec, numbers)
    known = {"np": np, "host": host, "prod": prod, "find": entries.find, "entries": entries.known, "LINES": _LINES,
             "word": ctypes.c_void_p.from_address, "HEAD": object.__basicsize__, "misfit": _misfit, "entry": entry,
             "parts_of": block if callable(block) else lambda rows, columns: -(-rows // block)}
    lead = arrays[0]
    reals = [each for each in arrays if each.kind in ("real", "stored")]
    dtype_of = f"{reals[0].name}.dtype"
    if reals[0].optional:
        dtype_of = f"({reals[1].name} if {reals[0].name} is None else {reals[0].name}).dtype"
    large = lead if lead is reals[0] else spec.outputs[0]
    lines = [f"dtype = {dtype_of}"]
    bound: dict[str, str] = {}
    for each in arrays:
        lines += _taken(each, each is reals[0], bound)
    for each in spec.outputs:
        lines += _made(each, spec, bound)
    given = [f"{f'None if {each.name} is None else ' if each.optional else ''}word(id({each.name}) + HEAD).value"
             for each in (*arrays, *spec.outputs)]
    given += [f"prod({axis[1:]})" if axis[0] == "*" else axis for axis in bound]
    given += [each.name for each in numbers]
    given.append(f"host.workers() if {large.name}.nbytes >= host.PARALLEL_BYTES else 1")
    lines += ["call, failures, check = entries.get(dtype.char) or find(dtype)", f"call({', '.join(given)})",
              "if failures.value:", "    check()"]
    back = [f"None if {each.name} is None else host.added_up({each.name})" if each.kind == "sum" and each.optional else
            f"host.added_up({each.name})" if each.kind == "sum" else each.name for each in spec.outputs]
    lines.append(f"return {', '.join(back)}")
    head = [each.name for each in spec.inputs] + [f"{each.name}=True" for each in spec.outputs if each.optional]
    text = "\n    ".join([f"def {entry}({', '.join(head)}):", *lines]) + "\n"
    return compiled(text, entry, f"<launch of {file}: {entry}>", known)


def _taken(array: Array, is_lead: bool, bound: dict[str, str]) -> list[str]:
    """The lines that make an argument contiguous, bind its new axes, and check it."""
    x, axes = array.name, array.axes or ()
    lines = [f"if not {x}.flags.c_contiguous:", f"    {x} = np.ascontiguousarray({x})"]
    binds = []
    for place, axis in enumerate(axes):
        if axis in bound or axis.isdigit():
            continue
        from_end = place - len(axes) + 1
        binds.append(f"{axis[1:]} = {x}.shape[:{from_end or ''}]" if axis[0] == "*" else
                     f"{axis} = {x}.shape[{from_end - 1}]")
        bound[axis] = axis
    wanted = f"({''.join(f'*{a[1:]}, ' if a[0] == '*' else f'{a}, ' for a in axes)})"
    dtype = "dtype" if array.kind in ("real", "stored") else f"np.{array.kind}{'_' if array.kind == 'bool' else ''}"
    tests = ([] if is_lead else [f"{x}.dtype != {dtype}"]) + \
            ([] if len(binds) == len(axes) else [f"{x}.shape != {wanted}"] if len(axes) > 1 or axes[0][0] != "*" else
             [f"{x}.shape != {axes[0][1:]}"])
    check = [f"if {' or '.join(tests)}:", f"    misfit(entry, {x!r}, {x}, {dtype}, {wanted})"] if tests else []
    lines = [*binds, *check, *lines] if not array.optional else \
        [f"if {x} is not None:", *("    " + line for line in (*check, *lines))]
    return lines


def _made(array: Array, spec: Spec, bound: dict[str, str]) -> list[str]:
    """The lines that allocate a result."""
    y = array.name
    if array.kind == "sum":
        assert array.axes is not None
        rows = next((f"prod({axis[1:]})" for axis in bound if axis[0] == "*"), next(iter(bound)))
        make = f"np.empty((parts_of({rows}, {array.axes[-1]}), {', '.join(array.axes)}), dtype)"
    elif array.like is not None:
        make = f"(host.empty if {array.like}.nbytes >= LINES else np.empty)({array.like}.shape, dtype)"
    else:
        shape = "".join(f"*{a[1:]}, " if a[0] == "*" else f"{a}, " for a in array.axes or ())
        make = f"np.empty(({shape}), {'dtype' if array.kind == 'real' else f'np.{array.kind}'})"
    return [f"{y} = {make} if {y} else None" if array.optional else f"{y} = {make}"]


def _misfit(entry: str, name: str, array: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raises the error for an argument of another kind than the declaration says."""
    if array.dtype != dtype:
        raise DtypeError(f"[{entry}] {name}: expected {np.dtype(dtype).name}, found {array.dtype.name}")
    raise ShapeError(f"[{entry}] {name}: expected shape {shape}, found {array.shape}")


class _Entries:
    """The entry point of each dtype, looked up at its first call."""

    def __init__(self, file: str, entry: str, arrays: int, spec: Spec, numbers: list[Array]) -> None:
        self._file, self._entry = file, entry
        axes = len(dict.fromkeys(axis for each in spec.inputs for axis in each.axes or () if not axis.isdigit()))
        self._types = [*[ctypes.c_void_p] * arrays, *[ctypes.c_int64] * axes,
                       *(NUMBERS[each.kind] for each in numbers), ctypes.c_int32]
        self.known: dict[str, tuple[Any, ctypes.c_int32, Callable[[], None]]] = {}

    def find(self, dtype: np.dtype) -> tuple[Any, ctypes.c_int32, Callable[[], None]]:
        """The entry for a dtype. Raises KernelError where there is no library for it, or no such entry in it."""
        loaded = library(self._file, dtype)
        if loaded is None:
            raise KernelError(f"[{self._entry}] {failure(self._file, dtype)}")
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


def failures_of(loaded: ctypes.CDLL) -> tuple[ctypes.c_int32, Any]:
    """The library's count of failed allocations, and the function that returns and clears this thread's."""
    try:
        return ctypes.c_int32.in_dll(loaded, "duoln_failures"), loaded.duoln_take_failures
    except (ValueError, AttributeError):  # a plug-in's text without that header
        return ctypes.c_int32(0), None
