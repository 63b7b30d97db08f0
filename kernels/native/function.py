"""Calls of compiled kernels, with checked arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln.core.call import compiled
from duoln.core.step.symbol import NotBound, is_traced, trace, tracing
from duoln.core.step.trace import Entry
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels.host import address
from duoln.kernels.native import storage
from duoln.kernels.native.loading import NAMES, library, refusal
from duoln.kernels.signature import Parameter, parameters

NUMBERS: dict[str, Any] = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
                            "float64": ctypes.c_double}
_NUMBER_TYPES = {name: float if name[0] == "f" else int for name in NUMBERS}
_DTYPES = {name: np.dtype(name) for name in (*NUMBERS, "bool", "uint8")}


class Function:
    """An entry point of a C++ file, with checked arguments.

    Args:
        file: below `kernels/`, or the whole path of a plug-in's.
        entry: its name without the dtype's ending.
        signature: the parameters, see `duoln.kernels.signature`; `real` is the dtype that the call chooses.

    Raises:
        KernelError: a parameter has a dtype that no array, or no number, can have.
        ValueError: the signature is none.
    """

    def __init__(self, file: str, entry: str, signature: str) -> None:
        self.file, self.entry = file, entry
        self.cpp_file = file
        self._parameters = parameters(signature)
        for each in self._parameters:
            dtypes = NUMBERS if each.rank is None else (*_DTYPES, "real")
            if each.dtype not in dtypes:
                raise KernelError(f"[{entry}] {each.name}: expected a dtype of {', '.join(dtypes)}, found "
                                  f"{each.dtype!r}")
        self._arrays = [(place, each) for place, each in enumerate(self._parameters) if each.rank is not None]
        self._entries: dict[str, tuple[Any, ctypes.c_int32, Any]] = {}
        storage.count_in(file)

    def __call__(self, *arguments: Any) -> None:
        """Call it on arrays, None and numbers. Arrays are C-contiguous, those of a parameter with "+" row by row.

        Raises:
            KernelError: another number of arguments, no library, or no such entry in it.
            MemoryError: too little memory for what the kernel needs beside its arrays; results are not defined then.
            DtypeError, ShapeError: an argument of another kind; the message names it.
        """
        if len(arguments) != len(self._parameters):
            raise KernelError(f"[{self.entry}] expected {len(self._parameters)} arguments, found {len(arguments)}")
        if tracing and is_traced(arguments):
            return self._bind(arguments)
        real = ""
        passed = list(arguments)
        for place, parameter in self._arrays:
            argument = arguments[place]
            if argument is None and parameter.optional:
                continue
            if not isinstance(argument, np.ndarray):
                raise self._misfit(parameter, argument, real)
            name = parameter.dtype
            if name == "real":
                name = real = real or NAMES.get(argument.dtype.char, "")
            if argument.dtype != _DTYPES.get(name) or argument.ndim != parameter.rank \
                    or not (argument.flags.c_contiguous or (parameter.apart and _in_rows(argument))):
                raise self._misfit(parameter, argument, name)
            passed[place] = address(argument)
        entry, failures, take_failures = self._entry(real)
        try:
            entry(*passed)
        except ctypes.ArgumentError as error:
            raise self._number_misfit(arguments) from error
        if failures.value and take_failures():
            raise self._no_memory()

    def unchecked(self, names: Sequence[str]) -> Callable[[np.dtype, tuple[Any, ...]], None]:
        """A function of a dtype, that of `real`, and of a tuple of values with these names.

        It calls the entry with those that its parameters name, and checks nothing: its caller has made the arrays.
        """
        given = []
        for name, _, rank, _, optional in self._parameters:
            pointer = f"word(id({name}) + HEAD).value"
            given.append(name if rank is None else f"None if {name} is None else {pointer}" if optional else pointer)
        lines = [f"def {self.entry}(dtype, values):", "if tracing and is_traced(values):",
                 f"    return bind(({''.join(f'values[{names.index(n)}], ' for n in self.names)}))",
                 f"{', '.join(names)} = values",
                 "entry, failures, take_failures = entries.get(dtype.char) or find(dtype)",
                 f"entry({', '.join(given)})", "if failures.value and take_failures():", "    raise no_memory()"]
        entries: dict[str, tuple[Any, ctypes.c_int32, Any]] = {}

        def find(dtype: np.dtype) -> tuple[Any, ctypes.c_int32, Any]:
            entries[dtype.char] = self._entry(NAMES[dtype.char])
            return entries[dtype.char]

        known = {"word": ctypes.c_void_p.from_address, "HEAD": object.__basicsize__, "entries": entries, "find": find,
                 "no_memory": self._no_memory, "tracing": tracing, "is_traced": is_traced, "bind": self._bind}
        return compiled("\n    ".join(lines) + "\n", self.entry, f"<call of {self.file}: {self.entry}>", known)

    def _bind(self, arguments: Sequence[Any]) -> None:
        """Note a call with symbols; a tuple stands for a row of words."""
        real = next(x.dtype for x, p in zip(arguments, self._parameters, strict=True)
                    if p.dtype == "real" and x is not None)
        words = [x if p.rank is not None else _NUMBER_TYPES[p.dtype](x)
                 for x, p in zip(arguments, self._parameters, strict=True)]
        trace().launch(by_words(self.file, self.entry, real), words)

    @property
    def names(self) -> list[str]:
        """The parameters, in order."""
        return [parameter.name for parameter in self._parameters]

    def by_address(self, dtype: np.dtype) -> Callable[..., None]:
        """A function of addresses, None and numbers, which checks nothing; `dtype` is that of `real`."""
        entry, failures, take_failures = self._entry(NAMES[dtype.char])

        def call(*words: Any) -> None:
            entry(*words)
            if failures.value and take_failures():
                raise self._no_memory()

        return call

    def _no_memory(self) -> MemoryError:
        return MemoryError(f"[{self.entry}] no memory left for what the kernel needs beside its arrays")

    def _number_misfit(self, arguments: Sequence[Any]) -> Exception:
        """The error for the first number that is not of its parameter's kind."""
        for parameter, argument in zip(self._parameters, arguments, strict=True):
            if parameter.rank is None:
                try:
                    NUMBERS[parameter.dtype](argument)
                except TypeError:
                    return DtypeError(f"[{self.entry}] {parameter.name}: expected {parameter.dtype}, found "
                                      f"{type(argument).__name__} {argument!r}")
        raise AssertionError("every number is of its kind")

    def _misfit(self, parameter: Parameter, argument: Any, wanted: str) -> Exception:
        if wanted in storage.REALS:
            parameter = parameter._replace(dtype=wanted)
        if not isinstance(argument, np.ndarray) or argument.dtype != _DTYPES.get(wanted):
            return DtypeError(f"[{self.entry}] {parameter.name}: expected {parameter}, found "
                              f"{argument.dtype.name if isinstance(argument, np.ndarray) else type(argument).__name__}")
        kind = "a strided" if argument.ndim == parameter.rank else "an"
        return ShapeError(f"[{self.entry}] {parameter.name}: expected {parameter}, found {kind} array of shape "
                          f"{argument.shape}")

    def _entry(self, real: str) -> tuple[Any, ctypes.c_int32, Any]:
        if real not in self._entries:
            if not real:
                raise DtypeError(f"[{self.entry}] expected an array of {' or '.join(storage.REALS)}, found none")
            loaded = library(self.file, np.dtype(real))
            if loaded is None:
                raise KernelError(f"[{self.entry}] {refusal(self.file, np.dtype(real))}")
            function = getattr(loaded, f"{self.entry}_{real}", None)
            if function is None:
                raise KernelError(f"[{self.entry}] expected the entry {self.entry}_{real} in {self.file}, found none")
            function.restype = None
            function.argtypes = [ctypes.c_void_p if p.rank is not None else NUMBERS[p.dtype] for p in self._parameters]
            self._entries[real] = function, *failures_of(loaded)
        return self._entries[real]


def by_words(file: str, entry: str, dtype: np.dtype) -> Entry:
    """The entry that takes its arguments as a row of words. Raises NotBound where the text has none."""
    loaded = library(file, dtype)
    function = getattr(loaded, f"{entry}_words_{NAMES[dtype.char]}", None)
    if loaded is None or function is None:
        raise NotBound(f"{entry} in {file}, which has no BY_WORDS({entry})")
    failures, take = failures_of(loaded)
    counted = () if take is int else (ctypes.addressof(failures), _place_of(take))
    return Entry(entry, _place_of(function), counted or (0, 0))


def _place_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def failures_of(loaded: ctypes.CDLL) -> tuple[ctypes.c_int32, Any]:
    """The library's count of failed allocations, and the function that takes this thread's count (`native.h`)."""
    try:
        return ctypes.c_int32.in_dll(loaded, "duoln_failures"), loaded.duoln_take_failures
    except (ValueError, AttributeError):  # a plug-in's text without that header
        return ctypes.c_int32(0), None


def _in_rows(array: np.ndarray) -> bool:
    """True if each row is contiguous, and the rows of a matrix do not overlap."""
    least = array.shape[-1] * array.itemsize if array.ndim == 2 else 0
    return array.ndim > 1 and array.strides[-1] == array.itemsize and min(array.strides[:-1]) >= least
