"""Declared launches of CUDA and Metal kernels on NumPy's arrays: the texts run on the CPU, through `hostgpu`.

    with emulated("cupy") as (backend, driver):
        ...                                     # rules of CuPy run on this backend, and so do their launches

An emulated backend computes with NumPy all that is no launch. Each launch runs its blocks and threads in another order.
Nothing here needs CuPy, MLX or a GPU; what a rule calls of these libraries itself is not emulated.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.core.spec import ArraySpec, Spec
from duoln.errors import KernelError
from duoln.kernels import launch as launches, source
from duoln.kernels.launch import Launch, declared
from duoln.kernels.launch.declared import Layout
from duoln.testing import hostgpu
from duoln.testing.hostgpu.metal import arguments, host_text

STORAGES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}
"""The numbers of the STORAGE macro; NumPy's backend holds bfloat16 as the bits."""
_PROCESSORS = 4
"""The device's multiprocessors, for plans that ask."""

Replacement = tuple[str, str]
"""A piece of a text, and what takes its place."""


class Driver:
    """Launches of one kind of device; in the place of the module `kernels.launch.cuda` or `.metal`."""

    def __init__(self, backend: str, twin: Replacement | None) -> None:
        self.backend, self._seeds, self.twin = backend, count(), twin
        self.changed = False
        """True after a launch of a text that has the twin's piece."""
        self.launched: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
        """The CUDA texts that were launched, each with its macros."""

    def refusal(self) -> None:
        """No launch is refused."""

    def text(self, whole: str) -> str:
        """A text with the twin's replacement, where it has the piece."""
        if self.twin is None or self.twin[0] not in whole:
            return whole
        self.changed = True
        return whole.replace(*self.twin)

    def launch(self, file: str, entry: str, spec: Spec,
               plan: Callable[..., Layout] = declared.a_thread_each) -> Callable[..., Any]:
        """The function that a declaration describes, see `launch.cuda` and `launch.metal`."""
        arrays, axes = declared.arrays_of(spec), declared.axes_of(spec)
        stored = next((each for each in arrays if each.kind == "stored" and not each.optional), None)
        lines = [] if stored is None else [f"dtype = {stored.name}.dtype"]
        bound = {each.name for each in declared.numbers_of(spec)}
        for each in arrays:
            lines += declared.argument_lines(each, None if each is stored else _kind(each, spec), bound)
        given = {"arrays": [each.name for each in arrays], "steps": declared.steps_of(spec),
                 "numbers": [each.name for each in declared.numbers_of(spec)],
                 "flags": [each.name for each in spec.outputs if each.optional]}
        parts = [f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}" for names in given.values()]
        sizes = ", ".join(f"{axis.lstrip('*')!r}: {axis.lstrip('*')}" for axis in axes)
        lines.append(f"return run({', '.join(parts)}, {{{sizes}}}, {'dtype' if stored else 'FLOAT32'})")
        run = self._on_metal if self.backend == "mlx" else self._on_cuda
        known = {"ascontiguousarray": np.ascontiguousarray, "prod": prod, "misfit": declared.misfit,
                 "run": lambda *told: run(file, entry, spec, plan, *told)}
        return declared.function(file, entry, spec, lines, known)

    def _on_cuda(self, file: str, entry: str, spec: Spec, plan: Callable[..., Layout], arrays: Mapping[str, Any],
                 steps: Mapping[str, int], numbers: Mapping[str, Any], flags: Mapping[str, bool],
                 shapes: Mapping[str, Any], dtype: np.dtype[Any]) -> Any:
        storage, sizes = STORAGES[dtype], _counts(shapes)
        aligned = not any(x is not None and x.ctypes.data & 15 for x in arrays.values())
        layout = _planned(plan, storage, sizes, numbers, arrays, {"aligned": aligned, "processors": _PROCESSORS})
        text, name = layout.text or (file, entry)
        macros = {**layout.macros, **({"STORAGE": storage} if storage else {})}
        self.launched.add((text, tuple(macros.items())))
        program = hostgpu.compile(source.text(text, self.twin and self.text), macros)
        made = _results(spec, arrays, shapes, flags, layout.parts, dtype)
        kinds = {each.name: np.float32 if each.kind[0] == "f" else np.int32 for each in declared.numbers_of(spec)}
        program.launch(name, layout.grid, layout.block, [
            *arrays.values(), *made.values(), *map(np.int32, (*sizes.values(), *steps.values())),
            *(kinds[key](value) for key, value in numbers.items())], shared=layout.shared, seed=next(self._seeds),
            most_shared=layout.shared or None, most_cluster=max(layout.cluster, hostgpu.CLUSTER_LIMIT))
        return _returned(spec, made)

    def _on_metal(self, file: str, entry: str, spec: Spec, plan: Callable[..., Layout], arrays: Mapping[str, Any],
                  steps: Mapping[str, int], numbers: Mapping[str, Any], flags: Mapping[str, bool],
                  shapes: Mapping[str, Any], dtype: np.dtype[Any]) -> Any:
        storage, sizes = STORAGES[dtype], _counts(shapes)
        layout = _planned(plan, storage, sizes, numbers, {**arrays, **{k: v or None for k, v in flags.items()}}, {})
        threads = prod(layout.block)
        made = _results(spec, arrays, shapes, flags, layout.parts, dtype)
        every = {**arrays, **made}
        macros = {**layout.macros, "THREADS": threads, entry.upper(): 1, **({"STORAGE": storage} if storage else {}),
                  **{f"HAS_{each.name.upper()}": int(every[each.name] is not None)
                     for each in (*declared.arrays_of(spec), *spec.outputs) if each.optional}}
        kinds = {each.name: np.float32 if each.kind[0] == "f" else np.int32 for each in declared.numbers_of(spec)}
        wanted = inspect.signature(plan).parameters
        inputs = {each.name: arrays[each.name].reshape(_flat(each, sizes)) for each in declared.arrays_of(spec)
                  if arrays[each.name] is not None}
        inputs |= {name: np.array(value, kinds[name]) for name, value in numbers.items() if name not in wanted}
        header, body = source.metal(file)
        defines = "".join(f"#define {name} {value}\n" for name, value in sorted(macros.items()))
        body = self.text(body)
        given = arguments(inputs, {name: x for name, x in made.items() if x is not None}, body)
        program = hostgpu.compile(host_text(entry, given, body, defines + header), prelude="metal.h")
        program.launch(entry, layout.grid, layout.block, [each.value.reshape(-1) for each in given],
                       seed=next(self._seeds))
        return _returned(spec, made)


def _kind(array: ArraySpec, spec: Spec) -> str:
    """The dtype of an argument as an expression."""
    if array.like is not None:
        array = next(each for each in spec.inputs if each.name == array.like)
    return "dtype" if array.kind == "stored" else "FLOAT32" if array.kind == "real" else array.kind.upper()


def _counts(shapes: Mapping[str, Any]) -> dict[str, int]:
    """The number of values along each axis, along all of `*rows`."""
    return {name: prod(size) if isinstance(size, tuple) else size for name, size in shapes.items()}


def _planned(plan: Callable[..., Layout], storage: int, sizes: Mapping[str, int], numbers: Mapping[str, Any],
             arrays: Mapping[str, Any], more: Mapping[str, Any]) -> Layout:
    given = {f"has_{name}": x is not None for name, x in arrays.items()}
    told = {"storage": storage, **sizes, **numbers, **given, **more}
    layout = plan(**{name: told[name] for name in inspect.signature(plan).parameters})
    if not isinstance(layout, Layout) or not isinstance(layout.grid, tuple) or not isinstance(layout.block, tuple):
        raise KernelError(f"plan: expected extend.Layout(blocks, threads) of two tuples, found {layout!r}")
    return layout


def _results(spec: Spec, arrays: Mapping[str, Any], shapes: Mapping[str, Any], flags: Mapping[str, bool], parts: int,
             dtype: np.dtype[Any]) -> dict[str, Any]:
    """The arrays that a launch writes, of NaN, whose bits no kernel may leave; None for those that are not wanted."""
    made: dict[str, Any] = {}
    for each in spec.outputs:
        shape: list[int] = [parts] if each.kind == "sum" else []
        for axis in each.axes or ():
            size = shapes.get(axis.lstrip("*"), axis)
            shape += size if isinstance(size, tuple) else [int(size)]
        kind = arrays[each.like].dtype if each.like else dtype if each.kind == "stored" else \
            np.dtype(np.float32) if each.kind in ("real", "sum") else np.dtype(each.kind)
        x = np.empty(arrays[each.like].shape if each.like else shape, kind)
        x.view(np.uint8).reshape(-1)[:] = 0xFF
        made[each.name] = x if flags.get(each.name, True) else None
    return made


def _returned(spec: Spec, made: Mapping[str, Any]) -> Any:
    back = [made[each.name] if each.kind != "sum" or made[each.name] is None else made[each.name].sum(0)
            for each in spec.outputs]
    return tuple(back) if len(back) > 1 else back[0]


def _flat(array: ArraySpec, sizes: Mapping[str, int]) -> Sequence[int]:
    """The shape of an argument whose leading axes are one."""
    return [int(sizes.get(axis.lstrip("*"), 0) or axis) for axis in array.axes or ()]


@contextlib.contextmanager
def emulated(name: str, twin: Replacement | None = None) -> Iterator[tuple[Backend, Driver]]:
    """Within this context, launches of "cupy" or "mlx" run on the CPU; gives a backend of that name on NumPy's arrays.

    Args:
        name: of the backend.
        twin: run changed texts: what has this piece gets the other one in its place.
    """
    driver = Driver(name, twin)
    module = launches.MODULES[name]
    backend: Any = type(runtime.backend("numpy"))()
    backend.name = name
    before = [(each, each.pop(name, None)) for each in Launch.every]
    launches.DRIVERS[module] = SimpleNamespace(launch=driver.launch, refusal=driver.refusal)
    try:
        runtime.attach_packages(name)
        yield backend, driver
    finally:
        del launches.DRIVERS[module]
        for each, made in before:
            each.pop(name, None)
            if made is not None:
                each[name] = made
