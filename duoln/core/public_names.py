"""The public names of modules: `dir` shows them alone, and the error for another name says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from types import MappingProxyType, ModuleType
from typing import Any

from duoln.core.arguments import did_you_mean

_EMPTY: Mapping[str, str] = MappingProxyType({})
MOVED = {f"{old}.{name}": f"{new}.{name}" for old, new, names in (
    ("duoln", "duoln.tasks", "train"), ("duoln", "duoln.testing", "gradcheck"),
    ("duoln.data", "duoln.tasks.originals", "DATA_SEED absent in_home locate original_or_made suited_to"),
    ("duoln.data", "duoln.data.batches", "Axes check_range count_examples examples"),
    ("duoln.data", "duoln.data.bounded", "CONTENT_ERRORS Unpacked most_unpacked opened read_whole size_of"),
    ("duoln.data", "duoln.data.files",
     "Resource data_folders find packed_or_not search_folders visible write_whole"),
    ("duoln.data", "duoln.data.idx", "write_idx"), ("duoln.data", "duoln.data.npz", "Expected map_npy write_npz"),
    ("duoln.data", "duoln.data.json_text", "json_of parse_json"),
    ("duoln.data", "duoln.data.mnist", "Digits find_mnist read_found"),
    ("duoln.data", "duoln.data.text", "at_line describe_unknown"),
    ("duoln.data", "duoln.system.paths", "cache_folder"),
    ("duoln.extend", "duoln.testing", "check_close check_error check_op check_rule gradcheck"),
    ("duoln.tasks", "duoln.tasks.settings", "parse_settings"),
    ("duoln.testing", "duoln.testing.closeness", "tolerance")) for name in names.split()}
"""Names that a public module had, and their places."""


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
    remedy = MOVED.get(f"{module}.{name}") or remedies.get(name)
    advice = f"; in duoln: {remedy}" if remedy else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name, obj=None)
