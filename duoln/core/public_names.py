"""The public names of modules: `dir` shows them alone, and the error for another name says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from types import MappingProxyType, ModuleType
from typing import Any

from duoln.core.arguments import did_you_mean

_EMPTY: Mapping[str, str] = MappingProxyType({})


def only_public(namespace: dict[str, Any], remedies: Mapping[str, str] = _EMPTY,
                lazy: Mapping[str, str] = _EMPTY) -> None:
    """Let `dir` of a module be its `__all__`, and the error for a name that it has not end with duoln's way.

    A submodule whose name is one of PyTorch's is no attribute: `ops.norm(x)` gets the answer for it. Its import,
    `from duoln.ops.norm import layer_norm`, stays as it is.

    Args:
        namespace: `globals()` of the module, at its end.
        remedies: duoln's way for each name; a module with a `__getattr__` of its own needs none.
        lazy: the places of names that are loaded when they are used, `MODULE:NAME`, or `MODULE:` for a module.
    """
    module, public = namespace["__name__"], namespace["__all__"]

    def find(name: str) -> Any:
        if name in lazy:
            return resolve_name(lazy[name])
        raise unknown_name(module, name, remedies, public)

    namespace.setdefault("__getattr__", find)
    namespace["__dir__"] = lambda: sorted(public)
    for name in remedies:
        if isinstance(namespace.get(name), ModuleType):
            del namespace[name]


def unknown_name(module: str, name: str, remedies: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error for a name that a module has not: it ends with duoln's way, or with the nearest name."""
    remedy = remedies.get(name)
    advice = f"; in duoln: {remedy}" if remedy else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name, obj=None)
