"""One file per array library, with one Protocol (`protocol.py`). A file is imported when its backend is requested."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from duoln.backends.protocol import DTYPES, NAMES, Array, Proofs
from duoln.errors import DtypeError, UsageError

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend

__all__ = ["NAMES", "OfLibrary", "load"]

_loaded: dict[str, Backend] = {}


def load(name: str) -> Backend:
    """The backend object of one array library; each process makes it once.

    Raises:
        UsageError: there is no such backend.
        Exception: the library cannot work here and raises this exception; `runtime` keeps it as the reason.
    """
    if name not in NAMES:
        raise UsageError(f"[backend] expected one of {', '.join(NAMES)}, auto; found {name!r}")
    if name not in _loaded:
        module = importlib.import_module(f"duoln.backends.{name}")
        backend: Backend = module.create()
        _loaded[name] = backend
    return _loaded[name]


_FUNCTIONS = ("abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "sign", "floor", "isfinite",
              "signbit", "fmod", "maximum", "minimum", "where", "logical_and", "logical_or", "logical_not",
              "expand_dims", "squeeze", "broadcast_to", "flip", "take", "take_along_axis", "max", "min", "all", "any")
"""The primitives that have the same name in all libraries."""


def copy_reason(strides: Sequence[int], itemsize: int, is_old: bool, is_contiguous: bool) -> str:
    """The reason why readers of DLPack get a copy in the place of strided memory; empty if they share it."""
    if any(step < 0 or step % itemsize for step in strides):
        return f"strides of {tuple(strides)} bytes"
    return "strided memory, and a reader that names no version of DLPack" if is_old and not is_contiguous else ""


def needs_copy(reason: str, copy: bool | None) -> bool:
    """True if there is a reason to copy. Raises BufferError if the reader asked for no copy."""
    if reason and copy is False:
        raise BufferError(f"[dlpack] copy: expected None or True, found False for {reason}")
    return bool(reason)


class OfLibrary:
    """The base of the backends. A primitive for which a backend has no method is the library's own function: it takes
    what the Protocol names before a star by position. A copy is the object itself, and a pickle loads as the object of
    this process.
    """

    name: str
    lazy = queues = False
    proofs: Proofs | None = None
    dtypes: tuple[str, ...] = DTYPES

    def __init__(self, library: ModuleType, natives: Mapping[str, Any], **others: str) -> None:
        """The functions and dtypes of a library; `others` are its names of primitives that it calls otherwise."""
        self.natives = natives
        self._names = {native: name for name, native in natives.items()}
        for primitive, function in {**dict(zip(_FUNCTIONS, _FUNCTIONS, strict=True)), **others}.items():
            if not hasattr(type(self), primitive):
                setattr(self, primitive, getattr(library, function))

    def dtype(self, x: Array) -> str:
        try:
            return self._names[x.dtype]
        except KeyError:
            raise DtypeError(f"[dtype] expected one of {', '.join(self.dtypes)}, found {x.dtype}") from None

    def native_dtype(self, name: str) -> Any:
        if name not in self.dtypes:
            raise DtypeError(f"[dtype] expected one of {', '.join(self.dtypes)}, found {name!r}")
        return self.natives[name]

    def stray_index(self, indices: Array, low: int, stop: int) -> int | None:
        """Always None, because the values are on a device, or not computed yet."""
        return None

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Backend], tuple[str]]:
        return load, (self.name,)
