"""Puts NumPy's arrays between pages without access rights, so that an access outside an array ends the process.

    guard_pages.install("end")      # arrays end where the page behind them begins; "start" for the page before
    python -m duoln.testing.guard_pages MODULE OPERATOR end     # tries the cases of a registered operator so

NumPy lets a program put its own allocator in the place of malloc (NEP 49), so every array is guarded from then on:
inputs, results and temporaries. Fresh memory is all ones, which is NaN as a float: a rule that reads what
it never wrote shows it. An address sanitizer would see less: it watches compiled code that was built for it, and these
rules are NumPy calls. To be installed once in a process of its own, which has to end by `os._exit`. The program names
each rule and case before it runs, so that the last name is that of what ended the process.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import sys
from typing import Any, Literal

import numpy as np

from duoln import runtime
from duoln.core import Rule
from duoln.kernels import host, registry
from duoln.testing import selftest

Side = Literal["start", "end"]

_SET_HANDLER = 304
"""The place of `PyDataMem_SetHandler` in NumPy's table of functions, whose places never change."""
_NONE, _READ_WRITE, _PRIVATE_ANONYMOUS = 0, 0x1 | 0x2, 0x2 | 0x20
_FRESH = 0xFF

_Malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Realloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """NumPy's `PyDataMem_Handler`."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p),
                ("malloc", _Malloc), ("calloc", _Calloc), ("realloc", _Realloc), ("free", _Free))


class _Guarded:
    """An allocator that gives every block pages of its own."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.blocks = 0
        self.name = ctypes.c_char_p(b"mem_handler")
        self._sizes: dict[int, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *3 * (ctypes.c_int,), ctypes.c_long)
        self._libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.handler = _Handler(b"guard pages", 1, None, _Malloc(self._malloc), _Calloc(self._calloc),
                                _Realloc(self._realloc), _Free(self._free))

    def _malloc(self, context: int | None, size: int) -> int:
        page, inside = mmap.PAGESIZE, _whole_pages(size)
        whole = self._libc.mmap(None, inside + 2 * page, _NONE, _PRIVATE_ANONYMOUS, -1, 0)
        if whole == ctypes.c_void_p(-1).value or self._libc.mprotect(whole + page, inside, _READ_WRITE):
            return 0  # NumPy raises MemoryError
        ctypes.memset(whole + page, _FRESH, inside)
        address = whole + page + (inside - size if self.side == "end" else 0)
        self._sizes[address] = size
        self.blocks += 1
        return int(address)

    def _calloc(self, context: int | None, count: int, size: int) -> int:
        address = self._malloc(context, count * size)
        if address:
            ctypes.memset(address, 0, count * size)
        return address

    def _realloc(self, context: int | None, old: int | None, size: int) -> int:
        address = self._malloc(context, size)
        if address and old:
            ctypes.memmove(address, old, min(self._sizes[old], size))
            self._free(context, old, 0)
        return address

    def _free(self, context: int | None, address: int | None, size: int) -> None:
        if address:
            inside = _whole_pages(self._sizes.pop(address))
            first = address // mmap.PAGESIZE * mmap.PAGESIZE
            self._libc.munmap(first - mmap.PAGESIZE, inside + 2 * mmap.PAGESIZE)


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def install(side: Side) -> _Guarded:
    """Guard every array that is made from now on in this context; the allocator, which must outlive them all."""
    guarded = _Guarded(side)
    pointer, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    api: Any = np._core  # type: ignore[attr-defined]
    table = ctypes.cast(pointer(api._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    set_handler(new(ctypes.addressof(guarded.handler), guarded.name, None))
    return guarded


# The program that tries an operator --------------------------------------------------------------------

_allocators: list[object] = []
"""The allocator outlives every array."""


def main(module: str, name: str, side: Side) -> int:
    """Try each case by each rule; the exit code."""
    importlib.import_module(module)
    backend = runtime.backend("numpy")
    known = registry.registered()[name]
    cases = [case for case in known.cases() if not case.gpu]

    def begin(case: registry.Case, rule: Rule) -> None:
        os.write(1, f"rule '{rule.name}', case {case}\n".encode())

    for case in cases:
        list(selftest.run(backend, [case], 1, begin))  # what is made once lies in ordinary memory
    host.empty = np.empty  # without what it adds for cache lines
    _allocators.append(install(side))
    os.write(1, b"guarded\n")
    wrong = [f"rule '{o.rule}', case {o.case}: {o.words}"
             for case in cases for o in selftest.run(backend, [case._replace()], 2, begin) if not o.right]
    os.write(2, "\n".join(wrong).encode())
    return 1 if wrong else 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])  # type: ignore[arg-type]
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)  # what is left of the arrays outlives the interpreter's ability to call their allocator
