"""The parts that declared launches of all devices share: lines that check, copy and allocate arrays.

    normalise = launch("norm/norm.cpp", "layer_norm_forward",
                       "x: stored[*rows, width], gain: real[width]?, eps: float64 -> y: like x, rstd: real[*rows]")
    y, rstd = normalise(x, gain, 1e-5)

The language is that of `core.spec`. A launch takes the arguments of the declaration in their order, and returns its
results, one alone or a tuple. It makes arguments contiguous and checks their shapes and dtypes; it owns what it
allocates. Its function is straight-line Python, made once, whose lines tracebacks show.

The entry of the text has all arrays as parameters, those of the arguments first; then the size of each axis, in the
order in which the axes appear, `*rows` being the product of its sizes; then the step, 0 or 1, of each array that may be
one number, `NAME_step`; then the numbers. Of an optional result, `dx: like x?`, the launch takes `dx=False`, and
returns None. Of a sum, `d_gain: sum[width]`, the entry writes parts, which the launch adds up. The driver prints the
prototype, and a text writes `ENTRY(layer_norm_forward) {` in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from duoln.core.call import function_of_text
from duoln.core.spec import ArraySpec, Spec
from duoln.errors import DtypeError, KernelError, ShapeError

_CPP = {"real": "T", "stored": "T", "sum": "T", "bool": "uint8_t", "int32": "int32_t", "int64": "int64_t",
        "float32": "float", "float64": "double"}
_CUDA = {"real": "float", "stored": "storage_t", "sum": "float", "bool": "bool", "int32": "int", "int64": "long long",
         "uint32": "unsigned", "float32": "float", "float64": "double"}
"""The types of a prototype's arrays and numbers."""
ACTIVATIONS = {None: 0, "relu": 1, "tanh": 2}
"""The activations that kernels compute in the same pass as a norm or a product: their numbers in activation.h."""
DTYPES = {name.upper(): np.dtype(name) for name in ("bool", "int32", "int64", "float32", "float64")}
"""The dtypes that lines name, as INT32."""


class Layout(NamedTuple):
    """The layout of a launch on a GPU: a CUDA grid of blocks, or Metal's threadgroups."""

    grid: tuple[int, ...]
    """The number of blocks along each axis."""
    block: tuple[int, ...]
    """The threads of a block."""
    macros: Mapping[str, int] = {}
    """The macros with which the text is compiled, without STORAGE."""
    parts: int = 0
    """The parts of each sum."""
    shared: int = 0
    """Bytes of dynamic shared memory."""
    cluster: int = 1
    """The blocks of a cluster, as the text declares them."""
    text: tuple[str, str] | None = None
    """Another file and entry, for these sizes."""


_THREADS = 256


def a_thread_each(size: int) -> Layout:
    """A thread for each value of `*size`."""
    return Layout((-(-size // _THREADS),), (_THREADS,))


_OF_CALLS = ("storage", "aligned", "processors")
"""The questions that a plan may ask of a call, beside sizes, numbers, and `has_NAME` of an optional array."""


def check_plan(entry: str, plan: Callable[..., Layout], spec: Spec) -> None:
    """Raises KernelError for a plan that asks for what no launch knows."""
    known = {*(axis.lstrip("*") for axis in axes_of(spec)), *(each.name for each in numbers_of(spec)),
             *(f"has_{each.name}" for each in (*arrays_of(spec), *spec.outputs) if each.optional), *_OF_CALLS}
    for name in inspect.signature(plan).parameters:
        if name not in known:
            raise KernelError(f"[{entry}] plan: expected parameters of {', '.join(sorted(known))}; found {name!r}")


_SIZES = sorted({size + more for size in (1 << k for k in range(18)) for more in (0, 1)})
"""The sizes between which no layout changes its macros."""


def layouts(plan: Callable[..., Layout], spec: Spec) -> Iterator[tuple[int, Layout]]:
    """Each STORAGE number with each layout that a plan gives, over all sizes and conditions."""
    values: dict[str, Sequence[int]] = {"processors": (132,)}
    for axis in (axis for each in (*spec.inputs, *spec.outputs) for axis in each.axes or ()):
        values[axis.lstrip("*")] = _SIZES[::len(_SIZES) - 1] if axis[0] == "*" else _SIZES
    wanted = list(inspect.signature(plan).parameters)
    for storage in range(3) if any(each.kind == "stored" for each in spec.inputs) else (0,):
        values["storage"] = (storage,)
        for told in product(*(values.get(name, (0, 1)) for name in wanted)):
            yield storage, plan(**dict(zip(wanted, told, strict=True)))


def settings(plan: Callable[..., Layout], file: str, spec: Spec) -> list[tuple[str, Mapping[str, int]]]:
    """Each text with each set of macros of these layouts."""
    every: list[tuple[str, Mapping[str, int]]] = []
    for storage, layout in layouts(plan, spec):
        macros = {**layout.macros, "STORAGE": storage} if storage else layout.macros
        setting = layout.text[0] if layout.text else file, macros
        if setting not in every:
            every.append(setting)
    return every


def arrays_of(spec: Spec) -> list[ArraySpec]:
    """The arguments that are arrays."""
    return [each for each in spec.inputs if not each.is_number]


def numbers_of(spec: Spec) -> list[ArraySpec]:
    """The arguments that are numbers."""
    return [each for each in spec.inputs if each.is_number]


def axes_of(spec: Spec) -> list[str]:
    """The axes that arrays bind, in the order in which they appear; `rows` with its star."""
    numbers = {each.name for each in numbers_of(spec)}
    return list(dict.fromkeys(axis for each in arrays_of(spec) for axis in each.axes or ()
                              if not axis.isdigit() and axis not in numbers))


def steps_of(spec: Spec) -> list[str]:
    """The names of the steps of arguments that may be one number."""
    return [f"{each.name}_step" for each in arrays_of(spec) if each.or_one]


def parameters(spec: Spec) -> list[str]:
    """The names of an entry's parameters, in their order."""
    arrays = [each.name for each in (*arrays_of(spec), *spec.outputs)]
    return [*arrays, *(axis.lstrip("*") for axis in axes_of(spec)), *steps_of(spec),
            *(each.name for each in numbers_of(spec))]


def cpp_parameters(spec: Spec) -> list[tuple[str, str]]:
    """The names and kinds of a C++ entry's parameters; the kind of an array's address is ""."""
    kinds = {each.name: each.kind for each in numbers_of(spec)}
    arrays = {each.name for each in (*arrays_of(spec), *spec.outputs)}
    names = parameters(spec) + ([] if "threads" in kinds else ["threads"])
    return [(name, "" if name in arrays else kinds.get(name, "int32" if name == "threads" else "int64"))
            for name in names]


def cpp_prototype(entry: str, spec: Spec) -> str:
    """The prototype of a C++ entry: sizes are int64_t, and the number of threads is the last one."""
    listed = _arrays(spec, _CPP, "")
    listed += [f"{_CPP[kind]} {name}" for name, kind in cpp_parameters(spec) if kind]
    return f'extern "C" void NAMED({entry})({", ".join(listed)})'


def cuda_prototype(entry: str, spec: Spec) -> str:
    """The prototype of a CUDA kernel, but for what stands before its name: sizes are int, and numbers int or float."""
    listed = _arrays(spec, _CUDA, " __restrict__")
    kinds = {each.name: each.kind for each in numbers_of(spec)}
    for name in parameters(spec)[len(listed):]:
        kind = kinds.get(name, "int32")
        listed.append(f"const {name.capitalize()} {name}" if kind == "struct" else
                      f"{'float' if kind[0] == 'f' else 'int'} {name}")
    return f"{entry}({', '.join(listed)})"


def _arrays(spec: Spec, types: dict[str, str], word: str) -> list[str]:
    inputs = {each.name: each for each in spec.inputs}

    def of(array: ArraySpec, is_read: bool) -> str:
        kind = inputs[array.like].kind if array.like else array.kind
        return f"{'const ' if is_read else ''}{types[kind]}*{word} {array.name}"

    return [*(of(each, not each.own) for each in arrays_of(spec)), *(of(each, False) for each in spec.outputs)]


def size_of(axis: str) -> str:
    """The number of values along an axis that is bound, as an expression."""
    return f"prod({axis[1:]})" if axis[0] == "*" else axis


def shape_of(axes: Sequence[str]) -> str:
    """The shape of these axes as an expression."""
    return f"({''.join(f'*{a[1:]}, ' if a[0] == '*' else f'{a}, ' for a in axes)})"


def result_shape(array: ArraySpec, parts: str = "parts") -> str:
    """The shape of a result as an expression; a sum has so many parts."""
    if array.kind == "sum":
        return f"({parts}, {', '.join(array.axes or ())})"
    return f"{array.like}.shape" if array.like else shape_of(array.axes or ())


def dtype_of(array: ArraySpec, spec: Spec, word: Callable[[str], str]) -> str:
    """The dtype of an array on a GPU as an expression; `word` makes that of its name."""
    if array.like is not None:
        array = next(each for each in spec.inputs if each.name == array.like)
    return "dtype" if array.kind == "stored" else word("float32" if array.kind in ("real", "sum") else array.kind)


def stored_in(spec: Spec) -> tuple[ArraySpec | None, list[str]]:
    """The array whose dtype is that of a call on a GPU, and the lines that give `dtype` and its number `storage`."""
    stored = next((each for each in arrays_of(spec) if each.kind == "stored" and not each.optional), None)
    return stored, [] if stored is None else [
        f"dtype = {stored.name}.dtype", "storage = STORAGES.get(dtype)", "if storage is None:",
        f"    unstored(entry, {stored.name!r}, dtype)"]


def argument_lines(array: ArraySpec, dtype: str | None, bound: set[str], copies: bool = True) -> list[str]:
    """The lines that bind the new axes of an argument, check it, and make it contiguous.

    Args:
        array: the argument.
        dtype: the one that it must have, as an expression; None where any will do.
        bound: the names that have values; the new ones are added.
        copies: whether the device needs arguments that are contiguous.
    """
    x, axes = array.name, array.axes or ()
    binds: list[str] = []
    for place, axis in enumerate(axes):
        if axis in bound or axis.isdigit():
            continue
        from_end = place - len(axes) + 1
        binds.append(f"{axis[1:]} = {x}.shape[:{from_end or ''}]" if axis[0] == "*" else
                     f"{axis} = {x}.shape[{from_end - 1}]")
        bound.add(axis)
    if array.own:
        if not array.optional or not binds:
            return binds
        raise ValueError(f"expected axes of arguments that are never None, found those of {x}")
    wanted = shape_of(axes)
    tests = [] if dtype is None else [f"{x}.dtype != {dtype}"]
    if len(binds) < len(axes) or array.axes == ():
        tests.append(f"{x}.shape != {axes[0][1:] if len(axes) == 1 and axes[0][0] == '*' else wanted}")
    lines = binds
    if tests:
        lines += [f"if {' or '.join(tests)}:", f"    misfit(entry, {x!r}, {x}, {dtype or f'{x}.dtype'}, {wanted})"]
    if copies:
        lines += [f"if not {x}.flags.c_contiguous:", f"    {x} = ascontiguousarray({x})"]
    if array.or_one and copies:
        lines[-2:] = [f"{x}_step = int(any({x}.strides))", f"if not {x}_step:",
                      f"    {x} = {x}[(0,) * {x}.ndim + (None,)]", f"elif not {x}.flags.c_contiguous:",
                      f"    {x} = ascontiguousarray({x})"]
    if not array.optional:
        return lines
    default = [f"{x}_step = 1"] if array.or_one and copies else []
    return [*default, f"if {x} is not None:", *(f"    {line}" for line in lines)]


def allocation_line(array: ArraySpec, shape: str, dtype: str, empty: str = "empty") -> str:
    """The line that allocates a result."""
    make = f"{empty}({shape}, {dtype})"
    return f"{array.name} = {make if not array.optional else f'{make} if {array.name} else None'}"


def function(file: str, entry: str, spec: Spec, lines: Sequence[str], known: Mapping[str, Any]) -> Callable[..., Any]:
    """The launch whose body these lines are; `known` has the names in them."""
    head = [each.name for each in spec.inputs] + [f"{each.name}=True" for each in spec.outputs if each.optional]
    text = "\n    ".join([f"def {entry}({', '.join(head)}):", *lines]) + "\n"
    return function_of_text(text, entry, f"<launch of {file}: {entry}>", {**DTYPES, "entry": entry, **known})


def misfit(entry: str, name: str, array: Any, dtype: Any, shape: Sequence[int]) -> None:
    """Raises the error for an argument of another kind than the declaration says."""
    if array.dtype != dtype:
        raise DtypeError(f"[{entry}] {name}: expected {_name(dtype)}, found {_name(array.dtype)}")
    raise ShapeError(f"[{entry}] {name}: expected shape {tuple(shape)}, found {tuple(array.shape)}")


def unstored(entry: str, name: str, dtype: Any) -> None:
    """Raises the error for a dtype that no kernel of 16 bits takes."""
    raise DtypeError(f"[{entry}] {name}: expected float32, float16 or bfloat16, found {_name(dtype)}")


def _name(dtype: Any) -> str:
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
