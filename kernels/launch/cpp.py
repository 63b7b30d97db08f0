"""Declared launches of C++ entries, on NumPy's arrays: see `kernels.launch.declared`.

    softmax = launch("softmax/softmax.cpp", "softmax_forward", "x: real[*rows, width], logarithm: int32 -> y: like x")
    y = softmax(x, 0)

An entry also takes the number of threads, last, unless the declaration has a number of that name. It writes one part of
a sum for each block of rows; the parts are added in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from duoln.core.spec import ArraySpec, Spec
from duoln.core.step.symbol import current_trace, is_traced, tracing
from duoln.kernels import host
from duoln.kernels.launch import declared
from duoln.kernels.native.entries import Entries

_LINES = 1 << 16
"""Bytes from which a result begins on a cache line, because a vector that lies in two lines takes two loads."""


def launch(entries: Entries, spec: Spec, block: int | Callable[[int, int], int] = 1) -> Callable[..., Any]:
    """The function that a declaration describes.

    Args:
        entries: the entry.
        spec: arguments and results.
        block: rows of a part of a sum, or how many parts there are of some rows and columns.
    """
    file, entry = entries.cpp_file, entries.name
    arrays, axes = declared.arrays_of(spec), declared.axes_of(spec)
    known = {"asarray": np.asarray, "ascontiguousarray": np.ascontiguousarray, "empty": np.empty, "host": host,
             "prod": prod, "find": entries.find, "entries": entries.known,
             "WrongArgument": ctypes.ArgumentError, "misfit_of": entries.misfit, "LINES": _LINES,
             "misfit": declared.misfit,
             "word": ctypes.c_void_p.from_address, "HEAD": object.__basicsize__,
             "parts_of": block if callable(block) else lambda rows, columns: -(-rows // block)}
    lead = arrays[0]
    reals = sorted([each for each in arrays if each.kind in ("real", "stored")], key=lambda each: each.optional)
    lines = [f"dtype = {reals[0].name}.dtype"]
    bound = {each.name for each in declared.numbers_of(spec)}
    for each in arrays:
        wanted = "dtype" if each.kind in ("real", "stored") else each.kind.upper()
        lines += declared.argument_lines(each, None if each is reals[0] else wanted, bound)
        if each.axes and len(each.axes) == 1 and each.axes[0][0] == "*" and not each.own:
            # Where an array has no axes, NumPy's arithmetic gives a scalar, which has no pointer to its value.
            is_there = f" and {each.name} is not None" if each.optional else ""
            lines += [f"if not {each.axes[0][1:]}{is_there}:", f"    {each.name} = asarray({each.name})"]
        elif each.axes == ():
            is_none = f"None if {each.name} is None else " if each.optional else ""
            lines.append(f"{each.name} = {is_none}asarray({each.name})")
    lines += [_allocation_line(each, axes, reals[0].name) for each in spec.outputs]
    large = lead if lead is reals[0] or not spec.outputs else spec.outputs[0]
    has_threads = any(each.name == "threads" for each in spec.inputs)
    given = [f"{f'None if {each.name} is None else ' if each.optional else ''}word(id({each.name}) + HEAD).value"
             for each in (*arrays, *spec.outputs)]
    numbers = declared.numbers_of(spec)
    sizes = [*map(declared.size_of, axes), *declared.steps_of(spec)]
    threads = [] if has_threads else [f"host.workers() if {large.name}.nbytes >= host.PARALLEL_BYTES else 1"]
    names = [each.name for each in (*arrays, *spec.outputs)]
    rest = [*sizes, *(each.name for each in numbers), *threads]
    call = ["call, failures, check = entries.get(dtype.char) or find(dtype)", "try:",
            f"    call({', '.join([*given, *rest])})", "except WrongArgument as error:",
            f"    raise misfit_of(error, {', '.join([*names, *rest])}) from error",
            "if failures.value:", "    check()"]
    back = [f"None if {each.name} is None else host.added_up({each.name})" if each.kind == "sum" and each.optional else
            f"host.added_up({each.name})" if each.kind == "sum" else each.name for each in spec.outputs]
    plain = [f"{'float' if n.kind[0] == 'f' else 'int'}({n.name})" for n in numbers]
    symbols = ", ".join([*names, *sizes, *plain, *threads])
    back_line = f"return {', '.join(back)}"
    arguments = f"({''.join(f'{each.name}, ' for each in spec.inputs)})"
    symbolic = declared.function(
        file, entry, spec, [*lines, f"trace().launch(entry_of(dtype), ({symbols},))", back_line],
        {**known, "empty": host.empty, "ascontiguousarray": host.contiguous, "asarray": lambda x: x,
         "trace": current_trace, "entry_of": entries.by_words})
    flags = "".join(f", {each.name}" for each in spec.outputs if each.optional)
    return declared.function(file, entry, spec, [
        f"if tracing and is_traced({arguments}):", f"    return bound(*{arguments}{flags})", *lines, *call, back_line],
        {**known, "tracing": tracing, "is_traced": is_traced, "bound": symbolic})


def _allocation_line(array: ArraySpec, axes: list[str], lead: str) -> str:
    """The line that allocates a result; of a large argument `lead` it may be large, too."""
    if array.kind == "sum":
        assert array.axes is not None
        rows = next((axis for axis in axes if axis[0] == "*"), axes[0])
        parts = f"parts_of({declared.size_of(rows)}, {array.axes[-1]})"
        return declared.allocation_line(array, f"({parts}, {', '.join(array.axes)})", "dtype")
    if array.like is not None:
        return declared.allocation_line(array, f"{array.like}.shape", f"{array.like}.dtype",
                             f"(host.empty if {array.like}.nbytes >= LINES else empty)")
    kind = "dtype" if array.kind in ("real", "stored") else array.kind.upper()
    shape = array.axes or ()
    empty = f"(host.empty if {lead}.nbytes >= LINES else empty)" if len(shape) > 2 else "empty"
    return declared.allocation_line(array, declared.shape_of(shape), kind, empty)
