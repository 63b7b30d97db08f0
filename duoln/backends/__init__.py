"""One file per array library, with one Protocol (`protocol.py`). A file is imported when its backend is requested."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from duoln.backends.protocol import NAMES
from duoln.errors import UsageError

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend

__all__ = ["NAMES", "OnePerProcess", "load"]

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


class OnePerProcess:
    """The base of the backends: a copy is the object itself, and a pickle loads as the object of this process."""

    name: str

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Backend], tuple[str]]:
        return load, (self.name,)
