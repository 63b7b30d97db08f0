"""Passes over NumPy's arrays in any layout: formulas of `formulas.cpp` one after the other, block by block.

    chain = Chain(2, [("multiply", (0, 1)), ("tanh", (2,))], outputs=[3])
    y, = chain(x, 0.5)
"""

from __future__ import annotations

import ctypes
import pkgutil
import re
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.core.call import function_of_text
from duoln.core.step.symbol import Symbol, current_trace, is_traced, tracing
from duoln.errors import KernelError
from duoln.kernels import host
from duoln.kernels.native.entries import Entries, by_words
from duoln.kernels.native.loading import NAMES, library, refusal

ENGINE, TEXT = "elementwise/engine.cpp", "elementwise/formulas.cpp"
SUM, GREATEST, LEAST = range(3)
"""The ways to put the values of a row or of a column together; see `put_together` in engine.cpp."""
MOST_STEPS = 24
"""Formulas of one pass, whose blocks stay in L1 and L2."""
_BLOCK, _LARGE_BLOCK = 1024, 8192
_MOST_ARGUMENTS, _MOST_PLANS = 4, 512
_WIDE = np.dtype(np.float64)
_LINES = 1 << 16
"""Bytes from which a result begins on a cache line."""
_VECTOR = 64
"""Values of the longest vector, and more."""
_PART_ROWS, _PART_BLOCKS, _MOST_PARTS = 128, 8, 512
_FORMULA = re.compile(r"^(FORMULA|TEST)(\d)\((.+)\)$", re.M)


class Formula(NamedTuple):
    """A line of `formulas.cpp`."""

    name: str
    arguments: tuple[str, ...]
    is_test: bool
    """True if its values are bools."""
    value: str


def _formulas() -> dict[str, Formula]:
    known = {}
    text = pkgutil.get_data("duoln.kernels", TEXT)  # also from a wheel that is not unpacked
    assert text is not None
    for kind, count, inside in _FORMULA.findall(text.decode()):
        name, *arguments, value = inside.split(", ", int(count) + 1)
        known[name] = Formula(name, tuple(arguments), kind == "TEST", value)
    return known


FORMULAS = _formulas()


def _entry(name: str, kinds: str) -> Entries:
    """An entry of the engine; a kind is p for an address, s for a size, t for a number of threads."""
    of = {"p": "", "s": "int64", "t": "int32"}
    return Entries(ENGINE, name, [(f"argument {k}", of[kind]) for k, kind in enumerate(kinds)])


_ONE = _entry("run_one", "sppspst")
_PASSES = (_entry("elementwise", "pppt"), _entry("reduce_rows", "pppppssst"), _entry("reduce_columns", "ppppssssst"))


class _Library:
    """The engine and the addresses of the formulas for a dtype."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        loaded = [library(file, dtype) for file in (ENGINE, TEXT)]
        for file, each in zip((ENGINE, TEXT), loaded, strict=True):
            if each is None:
                raise KernelError(f"[elementwise] {refusal(file, dtype)}")
        self._formulas, self._name = loaded[1], NAMES[dtype.char]
        self.passes = {each.name: each.find(dtype)[0] for each in _PASSES}
        self.one, self.failures, self.check = _ONE.find(dtype)

    def function(self, formula: str) -> Any:
        """The function of a formula: of the arrays' addresses, their masks, the result, the number of values, and 0."""
        function = getattr(self._formulas, f"{formula}_{self._name}")
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_int32]
        return function


_libraries: dict[str, _Library] = {}


def _library(dtype: np.dtype[Any]) -> _Library:
    if dtype.char not in _libraries:
        _libraries[dtype.char] = _Library(dtype)
    return _libraries[dtype.char]


class _Plan(NamedTuple):
    """A chain for arrays in certain layouts."""

    library: _Library
    words: np.ndarray
    """The numbers that `Plan` of engine.cpp reads."""
    address: int
    pointers: Any
    numbers: Any
    real: np.dtype[Any]
    results: tuple[np.dtype[Any], ...]
    empty: Any
    shape: tuple[int, ...]
    threads: bool
    """True if there is work for several threads."""

    def call(self, entry: str, pointers: Any, numbers: Any, *rest: Any) -> None:
        """A pass: of the plan, the addresses, the numbers, and arrays or sizes that the entry takes beside them."""
        threads = host.workers() if self.threads else 1
        if type(pointers) is tuple:
            row = (self.words, pointers, None if numbers is None else (*numbers,), *rest, threads)
            return current_trace().launch(by_words(ENGINE, entry, self.real), row)
        addresses = [host.address(x) if isinstance(x, np.ndarray) else x for x in rest]
        self.library.passes[entry](self.address, pointers, numbers, *addresses, threads)
        if self.library.failures.value:
            self.library.check()


def formula_function(formula: str, numbers: Container[str] = ()) -> Callable[..., np.ndarray]:
    """The function that computes one formula of arrays and numbers that broadcast.

    Contiguous arrays of one shape need no plan. `numbers` are the names of
    arguments that are numbers in all calls.
    """
    known = FORMULAS[formula]
    count = len(known.arguments)
    chain = Chain(count, [(formula, tuple(range(count)))], [count])
    names = [f"{name}_" for name in known.arguments]  # an argument may be called as a function
    lead, *others = [name for name in names if name[:-1] not in numbers]
    masks = (ctypes.c_int64 * _MOST_ARGUMENTS)(*[0 if name in numbers else -1 for name in known.arguments])
    vectors = [f"    {name} = vector({name}, dtype.char)" for name in names if name[:-1] in numbers]
    given = ", ".join([f"address({name})" for name in names])
    entries: dict[str, Any] = {}

    def find(dtype: np.dtype[Any]) -> Any:
        loaded = _library(dtype)
        run = loaded.function(formula)
        entries[dtype.char] = run, loaded.one, ctypes.cast(run, ctypes.c_void_p).value
        return entries[dtype.char]

    def run_chain(*given: Array | float) -> np.ndarray:
        y: np.ndarray = chain(*given)[0]
        return y

    def bound(*given: Any) -> Any:
        """A call with symbols: of arrays of one form, `run_one`."""
        arrays = [x for name, x in zip(known.arguments, given, strict=True) if name not in numbers]
        form = arrays[0]
        if known.is_test or not all(isinstance(x, np.ndarray) and (x.shape, x.dtype) == (form.shape, form.dtype)
                                    and x.flags.c_contiguous for x in arrays) or form.dtype.char not in NAMES:
            return run_chain(*given)
        row = tuple([_vector(x, form.dtype.char) if name in numbers else x
                     for name, x in zip(known.arguments, given, strict=True)])
        out = host.empty(form.shape, form.dtype)
        place = find(form.dtype)[2]
        is_large = form.nbytes >= host.PARALLEL_BYTES
        current_trace().launch(by_words(ENGINE, "run_one", form.dtype),
                       (place, row, np.array(masks, np.int64), count, out, form.size,
                        host.workers() if is_large else 1))
        return out

    conditions = [f"type({lead}) is ndarray and {lead}.dtype.char in reals and {lead}.flags.c_contiguous",
                  *[f"type({x}) is ndarray and {x}.shape == {lead}.shape and {x}.dtype == {lead}.dtype "
                    f"and {x}.flags.c_contiguous" for x in others]]
    text = [f"def {formula}({', '.join(names)}):", f"if tracing and is_traced(({', '.join(names)}, )):",
            f"    return bound({', '.join(names)})", *([] if known.is_test else [
            f"if {' and '.join(conditions)}:", f"    dtype = {lead}.dtype", *vectors,
            f"    out = (host_empty if {lead}.nbytes >= LINES else empty)({lead}.shape, dtype)",
            "    run, in_parts, place = entries.get(dtype.char) or find(dtype)", f"    if {lead}.nbytes < PARALLEL:",
            f"        run(pointers({given}), masks, address(out), {lead}.size, 0)", "    else:",
            f"        in_parts(place, pointers({given}), masks, {count}, address(out), {lead}.size, host.workers())",
            "    return out"]), f"return whole({', '.join(names)})"]
    return function_of_text("\n    ".join(text) + "\n", formula, f"<elementwise {formula}>", {
        "ndarray": np.ndarray, "reals": NAMES, "empty": np.empty, "host_empty": host.empty, "address": host.address,
        "pointers": ctypes.c_void_p * len(names), "masks": masks, "vector": _vector, "entries": entries, "find": find,
        "whole": run_chain, "bound": bound, "tracing": tracing, "is_traced": is_traced, "host": host,
        "PARALLEL": host.PARALLEL_BYTES, "LINES": _LINES})


@lru_cache(_MOST_PLANS)
def _vector(number: float, char: str) -> np.ndarray:
    """A vector of the number."""
    vector = np.full(_VECTOR, number, char)
    vector.flags.writeable = False
    return vector


class Chain:
    """Formulas that are computed in one pass over arrays that broadcast, and numbers.

    Args:
        inputs: the number of arrays and numbers that a call gets.
        steps: formulas with the places of their arguments; input k has place k, and step k the place `inputs + k`.
        outputs: the places of the results, each that of a step.
        value: the place of the values that `of_rows` and `of_columns` put together. None is the last one.
    """

    def __init__(self, inputs: int, steps: Sequence[tuple[str, tuple[int, ...]]], outputs: Sequence[int],
                 value: int | None = None) -> None:
        self.inputs, self.steps, self.outputs = inputs, tuple(steps), tuple(outputs)
        self._value = inputs + len(self.steps) - 1 if value is None else value
        self._plans: dict[Any, _Plan] = {}
        self.cpp_file = ENGINE
        """See native.foresight."""

    @classmethod
    def of(cls, formula: str) -> Chain:
        """The chain of one formula, whose values are put together."""
        count = len(FORMULAS[formula].arguments)
        return cls(count, [(formula, tuple(range(count)))], ())

    def __call__(self, *given: Array | float) -> list[Array]:
        """The results, in C order. Arrays are bools, and floats of one dtype; one at least is an array of floats."""
        plan, pointers, numbers, results = self._prepare_call(given)
        plan.call("elementwise", pointers, numbers)
        return results

    def of_rows(self, how: int, width: int, *given: Array | float) -> tuple[np.ndarray, list[Array]]:
        """One value for each row of `width` values, shape (rows,), and the results.

        `how` is SUM, GREATEST or LEAST.
        """
        plan, pointers, numbers, results = self._prepare_call(given)
        rows, blocks = prod(plan.shape) // width, -(-width // _BLOCK)
        out = host.empty((rows,) if blocks == 1 else (0,), plan.real)
        parts = host.empty((rows, blocks) if blocks > 1 else (0,), _WIDE)
        plan.call("reduce_rows", pointers, numbers, out, parts, rows, width, how)
        return out if blocks == 1 else _combine_parts(how, parts, plan.real), results

    def of_columns(self, how: int, matrices: int, length: int,
                   *given: Array | float) -> tuple[np.ndarray, list[Array]]:
        """One value for each column of matrices of `length` rows, shape (matrices, columns), and the results."""
        plan, pointers, numbers, results = self._prepare_call(given)
        columns = prod(plan.shape) // (matrices * length)
        at_once = max(_PART_ROWS, _PART_BLOCKS * _BLOCK // columns, -(-length // _MOST_PARTS))
        parts = host.empty((matrices, -(-length // at_once), columns), plan.real)
        plan.call("reduce_columns", pointers, numbers, parts, matrices, length, columns, at_once, how)
        return parts[:, 0] if parts.shape[1] == 1 else _combine_parts(how, parts, plan.real), results

    def _prepare_call(self, given: Sequence[Array | float]) -> tuple[_Plan, Any, Any, list[Array]]:
        """The plan for some arrays and numbers, the addresses of the arrays and results, the numbers, the results."""
        arrays, numbers = list[np.ndarray](), list[float]()
        key: list[Any] = []
        for x in given:
            if isinstance(x, np.ndarray):
                arrays.append(x)
                key.append((x.shape, x.strides, x.dtype.char))
            elif isinstance(x, np.generic):
                arrays.append(np.asarray(x))
                key.append(((), (), x.dtype.char))
            else:
                numbers.append(x)
                key.append(None)
        known = tuple(key)
        plan = self._plans.get(known)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[known] = self._plan(given)
        if tracing and is_traced(given):
            results = [host.empty(plan.shape, dtype) for dtype in plan.results]
            return plan, (*arrays, *results), tuple(numbers) or None, results
        results = [plan.empty(plan.shape, dtype) for dtype in plan.results]
        return (plan, plan.pointers(*[host.address(x) for x in arrays], *[host.address(x) for x in results]),
                plan.numbers(*numbers) if numbers else None, results)

    def _plan(self, given: Sequence[Array | float]) -> _Plan:
        places = [k for k, x in enumerate(given) if isinstance(x, np.ndarray | np.generic)]
        arrays: list[np.ndarray] = [x.form if type(x) is Symbol else np.asarray(x) for x in [given[k] for k in places]]
        real = next(x.dtype for x in arrays if x.dtype.char in NAMES)
        shape = np.broadcast_shapes(*[x.shape for x in arrays])
        axes, strides = _merge_axes(shape, [np.broadcast_to(x, shape).strides for x in arrays])
        contiguous = [prod(axes[k + 1:]) for k in range(len(axes))]
        slots, count = self._slots()
        words = [prod(shape), len(axes), len(arrays), len(given) - len(arrays), len(self.steps), len(self.outputs),
                 count, slots[self._value], _BLOCK, *axes]
        for k, x, steps in zip(places, arrays, strides, strict=True):
            values = [step // x.itemsize for step in steps]
            words += [int(x.dtype == np.bool_), slots[k], int(values == contiguous), *values]
        words += [slots[k] for k in range(len(given)) if k not in places]
        loaded = _library(real)
        for k, (name, taken) in enumerate(self.steps):
            function = ctypes.cast(loaded.function(name), ctypes.c_void_p).value or 0
            words += [function, slots[self.inputs + k], *[slots[each] for each in taken],
                      *[slots[taken[0]]] * (_MOST_ARGUMENTS - len(taken))]
        read = {self._value, *[place for _, taken in self.steps for place in taken]}
        tests = [self._is_test(place) for place in self.outputs]
        for place, test in zip(self.outputs, tests, strict=True):
            words += [int(test), slots[place], int(place in read)]
        if count == len(given) + len(self.outputs) and not any(tests) and all(
                x.dtype == real and x.shape == shape and x.flags.c_contiguous for x in arrays):
            words[8] = _LARGE_BLOCK  # no value needs a block of its own
        packed = np.array(words, np.int64)
        size = prod(shape) * real.itemsize
        return _Plan(loaded, packed, host.address(packed), ctypes.c_void_p * (len(arrays) + len(self.outputs)),
                     ctypes.c_double * (len(given) - len(arrays)), real,
                     tuple([np.dtype(bool) if test else real for test in tests]),
                     host.empty if size >= _LINES else np.empty, shape, size >= host.PARALLEL_BYTES)

    def _is_test(self, place: int) -> bool:
        return place >= self.inputs and FORMULAS[self.steps[place - self.inputs][0]].is_test

    def _slots(self) -> tuple[list[int], int]:
        """A slot for the block of each value, and how many there are. One is used again after its last reader.

        Those of inputs and outputs are their own, because they may stand for the arrays.
        """
        kept = {*self.outputs, self._value}
        last = {place: k for k, (_, taken) in enumerate(self.steps) for place in taken}
        slots, free, count = list(range(self.inputs)), list[int](), self.inputs
        for k, (_, taken) in enumerate(self.steps):
            place = self.inputs + k
            if free and place not in kept:
                slots.append(free.pop())
            else:
                slots.append(count)
                count += 1
            free += {slots[each] for each in taken
                     if each >= self.inputs and last[each] == k and each not in kept}
        return slots, count


def _combine_parts(how: int, parts: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The sums, in float64, or the greatest or least, of the parts along axis 1."""
    reduce = (np.add.reduce, np.maximum.reduce, np.minimum.reduce)[how]
    together: np.ndarray = reduce(parts, axis=1, dtype=np.float64).astype(dtype)
    return together


def _merge_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The axes of arrays, as few as there can be, with the strides of each array: those of length 1 go, and two are one
    where every array has their values at one distance.
    """
    axes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for k, length in enumerate(shape):
        if length == 1:
            continue
        if axes and all(mine[-1] == theirs[k] * length for mine, theirs in zip(steps, strides, strict=True)):
            axes[-1] *= length
            for mine, theirs in zip(steps, strides, strict=True):
                mine[-1] = theirs[k]
        else:
            axes.append(length)
            for mine, theirs in zip(steps, strides, strict=True):
                mine.append(theirs[k])
    if not axes:
        return [1], [[0] for _ in strides]
    return axes, steps
