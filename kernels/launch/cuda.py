"""Declared launches of CUDA kernels through CuPy, see `launch.declared`.

A RawKernel checks nothing: it ignores strides, passes a Python float as a double, and reads any memory to which an
argument points. A launch checks its arguments, finds the layout that its plan gives for their sizes, and runs the
kernel that is compiled with that layout's macros on the current stream. A time loop binds one, and runs it again with
another number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import cupy
import numpy as np

from duoln.core.spec import ArraySpec, Spec
from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.columns import SUM_COLUMNS, groups_of
from duoln.kernels.launch import declared
from duoln.kernels.launch.declared import Layout

_OPTIONS = ("--std=c++17",)
_PORTABLE_CLUSTER = 8
"""A kernel must request clusters of more blocks."""
_ANY_CLUSTER = 14
"""CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED of the driver."""
_NULL = np.uint64(0)
"""The null pointer that an optional parameter gets."""


class Kernel:
    """One entry of a text. The first use with each set of macros on a device compiles it."""

    def __init__(self, file: str, entry: str) -> None:
        self.file, self.entry = file, entry
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._asked: dict[int, int] = {}
        """Bytes of dynamic shared memory, by the identity of a compiled function."""

    def ready(self, macros: Mapping[str, int], shared: int, cluster: int) -> Any:
        """CuPy's function, after it has asked for dynamic shared memory (with what the source declares it may be more
        than a kernel has unasked) and for clusters that not every device has.

        Raises:
            KernelError: the compiler fails. Exception: what CuPy raises where the driver refuses.
        """
        function = self.compiled(macros)
        if shared > self._asked.get(id(function), 0):
            function.max_dynamic_shared_size_bytes = shared
            self._asked[id(function)] = shared
        if cluster > _PORTABLE_CLUSTER:
            cupy.cuda.driver.funcSetAttribute(function.kernel.ptr, _ANY_CLUSTER, 1)
        return function

    def compiled(self, macros: Mapping[str, int]) -> Any:
        """CuPy's function for these macros on the current device.

        Raises:
            KernelError: the compiler fails; the message has the file, the entry, the macros and the compiler's log.
        """
        key = (current_device(), *macros.items())
        if key not in self._compiled:
            options = (*_OPTIONS, *(f"-D{name}={value}" for name, value in sorted(macros.items())))
            try:
                module = cupy.RawModule(code=source.text(self.file), options=options)
                self._compiled[key] = module.get_function(self.entry)
            except Exception as error:
                raise KernelError(f"[{self.entry}] {self.file} with {dict(macros)} does not compile:\n{error}"
                                  ) from error
        return self._compiled[key]


_MOST_LAYOUTS = 1 << 12
"""Layouts of a launch that are kept, one for each set of sizes."""


def launch(file: str, entry: str, spec: Spec, plan: Callable[..., Layout] = declared.a_thread_each,
           ) -> Callable[..., Any]:
    """The function that a declaration describes, on the current stream.

    Args:
        file: the CUDA text, below `kernels/`, or the whole path of a plug-in's.
        entry: the name of its kernel.
        spec: arguments and results. `stored` is the dtype of the call, with its STORAGE macro; `real` is float32, and
            so is a number of float64.
        plan: the layout, from what its parameters name: an axis (`rows` of `*rows`); `storage`, the STORAGE number;
            `aligned`, whether all arguments begin at 16 bytes; `has_NAME`, whether an optional array is given; a
            number; and `processors`, the device's multiprocessors.
    """
    _, lines, given, known = _prepared(file, entry, spec, plan)
    lines += ["try:", f"    run(grid, block, ({given}), shared_mem=shared)", "except Exception as error:",
              "    raise layouts.refused(grid, block, shared, error) from error"]
    sums = [each.name for each in spec.outputs if each.kind == "sum"]
    if sums:
        lines.append(f"{', '.join(sums)}{',' * (len(sums) == 1)} = added_up({', '.join(sums)})")
    lines.append(f"return {', '.join(each.name for each in spec.outputs)}")
    return declared.function(file, entry, spec, lines, known)


def binder(file: str, entry: str, spec: Spec, plan: Callable[..., Layout]) -> Callable[..., Callable[..., None]]:
    """A function of the arguments of a launch without results, and of the name of the number that varies, or None.

    It checks them. A time loop repeats what it gives, with the number of the time step only.
    """
    layouts, lines, given, known = _prepared(file, entry, spec, plan)
    lines.append(f"return run, grid, block, shared, ({given})")
    prepare, names = declared.function(file, entry, spec, lines, known), declared.parameters(spec)

    def bind(*arguments: Any, varying: str | None = None) -> Callable[..., None]:
        function, grid, block, shared, fixed = prepare(*arguments)
        given, place = list(fixed), None if varying is None else names.index(varying)

        def run(number: int = 0) -> None:
            if place is not None:
                given[place] = np.int32(number)
            try:
                function(grid, block, tuple(given), shared_mem=shared)
            except Exception as error:
                raise layouts.refused(grid, block, shared, error) from error

        return run

    return bind


def _prepared(file: str, entry: str, spec: Spec,
              plan: Callable[..., Layout]) -> tuple[Layouts, list[str], str, dict[str, Any]]:
    """The layouts of a launch, its lines up to the call of the kernel, the kernel's arguments, the names in them."""
    layouts = Layouts(file, entry, plan, spec)
    arrays = declared.arrays_of(spec)
    kinds = {each.name: declared.dtype_of(each, spec, str.upper) for each in (*arrays, *spec.outputs)}
    stored, of_storage = declared.stored_in(spec)
    known = {"cupy": cupy, "empty": cupy.empty, "ascontiguousarray": cupy.ascontiguousarray, "prod": prod,
             "layouts": layouts, "device_of": cupy.cuda.runtime.getDevice, "misfit": declared.misfit, "NULL": _NULL,
             "int32": np.int32, "float32": np.float32, "STORAGES": STORAGES, "unstored": declared.unstored,
             "strange": _raise_wrong_device, "foreign": _raise_not_cupy, "added_up": added_up}
    lines = ["device = device_of()", *_lines_of_device(arrays), *of_storage]
    bound = {each.name for each in declared.numbers_of(spec)}
    for each in arrays:
        lines += declared.argument_lines(each, None if each is stored else kinds[each.name], bound)
    lines += [f"key = device, {', '.join(layouts.keys())}",
              f"{', '.join(['run', 'grid', 'block', 'shared', 'parts', *layouts.sizes])} = "
              "layouts.known.get(key) or layouts.find(*key)"]
    lines += [declared.allocation_line(each, declared.result_shape(each), kinds[each.name]) for each in spec.outputs]
    given = [f"NULL if {each.name} is None else {each.name}" if each.optional else each.name
             for each in (*arrays, *spec.outputs)]
    given += [*layouts.sizes, *(f"int32({step})" for step in declared.steps_of(spec))]
    given += [each.name if each.kind == "struct" else f"{'float' if each.kind[0] == 'f' else 'int'}32({each.name})"
              for each in declared.numbers_of(spec)]
    return layouts, lines, f"{', '.join(given)},", known


def _lines_of_device(arrays: Sequence[ArraySpec]) -> list[str]:
    """The lines that refuse arrays of the host and of another device."""
    checked = [each for each in arrays if not each.own]
    tests = [line for each in checked for line in (
        f"    if {f'{each.name} is not None and ' * each.optional}{each.name}.data.device_id != device:",
        f"        strange(entry, {each.name!r}, {each.name}, device)")]
    named = ", ".join([f"{each.name!r}: {each.name}" for each in checked])
    return ["try:", *tests, "except AttributeError:", f"    foreign(entry, {{{named}}})"] if checked else []


def _raise_not_cupy(entry: str, given: Mapping[str, Any]) -> None:
    name, array = next((name, x) for name, x in given.items() if x is not None and not isinstance(x, cupy.ndarray))
    raise KernelError(f"[{entry}] {name}: expected a CuPy array, found {type(array).__module__}.{type(array).__name__}")


def _raise_wrong_device(entry: str, name: str, array: Any, device: int) -> None:
    raise KernelError(f"[{entry}] {name}: expected an array on device {device}, found one on device "
                      f"{array.data.device_id}")


class Layouts:
    """The layouts of a declared launch, and its compiled kernels; both are found when a size first comes."""

    every: list[Layouts] = []  # noqa: RUF012
    """Those of this process."""

    def __init__(self, file: str, entry: str, plan: Callable[..., Layout], spec: Spec) -> None:
        self.file, self.entry, self.spec, self._plan = file, entry, spec, plan
        axes = declared.axes_of(spec)
        self.sizes = [f"{axis.lstrip('*')}_size" for axis in axes]
        self._axes = {axis.lstrip("*"): declared.size_of(axis) for axis in axes}
        arrays = declared.arrays_of(spec)
        self._is_stored = any(each.kind == "stored" for each in arrays)
        self._wanted = list(inspect.signature(plan).parameters)
        starts = " | ".join(f"(0 if {each.name} is None else {each.name}.data.ptr)" if each.optional else
                            f"{each.name}.data.ptr" for each in arrays if each.kind in ("real", "stored"))
        self._of_call = {"aligned": f"not ({starts}) & 15", **{n.name: n.name for n in declared.numbers_of(spec)},
                         **{f"has_{each.name}": f"{each.name} is not None" for each in arrays if each.optional}}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self.known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        Layouts.every.append(self)

    def keys(self) -> list[str]:
        """The expressions of what tells one layout from another."""
        named = [name for name in self._wanted if name in self._of_call]
        return ["storage" if self._is_stored else "0", *self._axes.values(), *(self._of_call[name] for name in named)]

    def find(self, device: int, storage: int, *values: Any) -> tuple[Any, ...]:
        """The kernel, its grid, block, shared bytes and parts, and the sizes as it takes them.

        Raises:
            KernelError: the compiler fails.
        """
        names = [*self._axes, *(name for name in self._wanted if name in self._of_call)]
        told = {"storage": storage, **dict(zip(names, values, strict=True))}
        if "processors" in self._wanted:
            told["processors"] = multiprocessors()
        layout = self._plan(**{name: told[name] for name in self._wanted})
        text = layout.text or (self.file, self.entry)
        kernel = self._kernels.setdefault(text, Kernel(*text))
        macros = {**layout.macros, "STORAGE": storage} if storage else layout.macros
        run = kernel.ready(macros, layout.shared, layout.cluster)
        if len(self.known) >= _MOST_LAYOUTS:
            self.known.clear()
        entry = (run, layout.grid, layout.block, layout.shared, layout.parts,
                 *(np.int32(told[name]) for name in self._axes))
        self.known[device, storage, *values] = entry
        return entry

    def refused(self, grid: Sequence[int], block: Sequence[int], shared: int, error: Exception) -> KernelError:
        """The error for a launch that the driver refuses."""
        return KernelError(f"[{self.entry}] {self.file}: launch of grid {grid}, block {block}, {shared} bytes shared: "
                           f"{error}")


def current_device() -> int:
    """The number of the current device."""
    return int(cupy.cuda.runtime.getDevice())


def address(array: Any) -> int:
    """The address of an array on the device; 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def packed(*arrays: Any) -> tuple[Any, ...]:
    """The arrays in contiguous memory, as a kernel needs them: others are copied, and None stays None."""
    return tuple([None if a is None else cupy.ascontiguousarray(a) for a in arrays])


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """An array on the current device; its values are not defined."""
    return cupy.empty(tuple(shape), dtype=dtype)


STORAGES: dict[Any, int] = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}
"""The STORAGE number of each dtype, see storage.cuh; bfloat16 arrives as uint16."""


def multiprocessors() -> int:
    """The number of multiprocessors of the current device."""
    return int(properties()["multiProcessorCount"])


def properties() -> Mapping[str, Any]:
    """The properties of the current device from the driver, by the names of the runtime's structure."""
    return _properties_of(current_device())


@cache
def _properties_of(device: int) -> Mapping[str, Any]:
    """The driver needs 1 to 2 ms for them."""
    given: Mapping[str, Any] = cupy.cuda.runtime.getDeviceProperties(device)
    return given


def too_large(*arrays: Any) -> str | None:
    """The reason why a kernel with 32-bit row and column numbers cannot take these arrays; None if it can."""
    largest = max((a.size for a in arrays if a is not None), default=0)
    return f"{largest} values are more than 2^31" if largest >= 1 << 31 else None


def sum_columns(x: Any, y: Any = None) -> tuple[Any, Any]:
    """The sum of each column of x (rows, width), and of y of the same shape, in float32, added in a fixed order.

    Args:
        x: the first array, of float32 or stored in 16 bits.
        y: the second one, of the same dtype; if it is None, so is the second result.
    """
    rows, width = x.shape
    group, groups = groups_of(rows)
    arrays = 1 if y is None else 2
    sums = cupy.empty((arrays, groups, width), dtype=np.float32)
    SUM_COLUMNS["cupy"](x, y, sums, group)
    if groups > 1:
        return sum_columns(sums[0], None if y is None else sums[1])
    return sums[0, 0], None if y is None else sums[1, 0]


def added_up(*parts: Any) -> list[Any]:
    """The sums of parts, each (n, width) or None, two of one width in one launch."""
    sums: list[Any] = [None] * len(parts)
    present = [place for place, each in enumerate(parts) if each is not None]
    while present:
        place, *present = present
        if present and parts[place].shape == parts[present[0]].shape:
            second, *present = present
            sums[place], sums[second] = sum_columns(parts[place], parts[second])
        else:
            sums[place] = sum_columns(parts[place])[0]
    return sums
