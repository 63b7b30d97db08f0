"""The entry points of compiled texts: found by name, and called with addresses and numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln.core.step.symbol import NotBound
from duoln.core.step.trace import Entry
from duoln.errors import DtypeError, KernelError
from duoln.kernels.native.loading import NAMES, library, refusal

NUMBERS: dict[str, Any] = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
                           "float64": ctypes.c_double}
"""The types of an entry's numbers."""

Found = tuple[Any, ctypes.c_int32, Callable[[], None]]
"""A function, its library's count of failed allocations, and what raises the error for them."""


class Entries:
    """An entry of a text, of each dtype.

    Args:
        file: the C++ text, below `kernels/`, or the whole path of a plug-in's.
        name: that of the entry without the dtype's ending.
        parameters: the names of its arguments and their kinds, one of NUMBERS or "" for an address.
    """

    def __init__(self, file: str, name: str, parameters: Sequence[tuple[str, str]]) -> None:
        self.cpp_file, self.name = file, name
        """See native.foresight."""
        self.parameters = [parameter for parameter, _ in parameters]
        self._kinds = [kind for _, kind in parameters]
        self.known: dict[str, Found] = {}
        """By the character of the dtype."""

    def find(self, dtype: np.dtype) -> Found:
        """The entry for a dtype. Raises KernelError where there is no library for it, or no such entry in it."""
        loaded = library(self.cpp_file, dtype)
        if loaded is None:
            raise KernelError(f"[{self.name}] {refusal(self.cpp_file, dtype)}")
        full = f"{self.name}_{NAMES[dtype.char]}"
        function = getattr(loaded, full, None)
        if function is None:
            raise KernelError(f"[{self.name}] expected the entry {full} in {self.cpp_file}, found none")
        function.restype = None
        function.argtypes = [NUMBERS[kind] if kind else ctypes.c_void_p for kind in self._kinds]
        failures, take = failures_of(loaded)

        def check() -> None:
            if take():
                raise MemoryError(f"[{self.name}] no memory left for what the kernel needs beside its arrays")

        self.known[dtype.char] = function, failures, check
        return self.known[dtype.char]

    def by_words(self, dtype: np.dtype) -> Entry:
        """The entry that takes its arguments as a row of words. Raises NotBound where the text has none."""
        return by_words(self.cpp_file, self.name, dtype)

    def by_address(self, dtype: np.dtype) -> Callable[..., None]:
        """A function of addresses, None and numbers, in the order of `parameters`; it checks nothing."""
        entry, failures, check = self.known.get(dtype.char) or self.find(dtype)

        def call(*words: Any) -> None:
            entry(*words)
            if failures.value:
                check()

        return call

    def misfit(self, error: Exception, *given: Any) -> Exception:
        """The error for the first number that is not of its parameter's kind; else `error`."""
        for name, kind, value in zip(self.parameters, self._kinds, given, strict=True):
            if kind:
                try:
                    NUMBERS[kind](value)
                except TypeError:
                    return DtypeError(f"[{self.name}] {name}: expected {kind}, found {type(value).__name__} {value!r}")
        return error


def by_words(file: str, entry: str, dtype: np.dtype) -> Entry:
    """The entry that takes its arguments as a row of words. Raises NotBound where the text has none."""
    loaded = library(file, dtype)
    function = getattr(loaded, f"{entry}_words_{NAMES[dtype.char]}", None)
    if loaded is None or function is None:
        raise NotBound(f"{entry} in {file}, which has no BY_WORDS({entry})")
    failures, take = failures_of(loaded)
    counted = (0, 0) if take is int else (ctypes.addressof(failures), _place_of(take))
    return Entry(entry, _place_of(function), counted)


def _place_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def failures_of(loaded: ctypes.CDLL) -> tuple[ctypes.c_int32, Any]:
    """The library's count of failed allocations, and the function that takes this thread's count (`common.h`)."""
    try:
        return ctypes.c_int32.in_dll(loaded, "duoln_failures"), loaded.duoln_take_failures
    except (ValueError, AttributeError):  # a text without that header
        return ctypes.c_int32(0), int
