"""The form of a tree in the notes of a file: its dicts, lists and tuples, and what its author says of each leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duoln.core.arguments import described
from duoln.errors import DtypeError

_BRANCHES = ("dict", "list", "tuple")


def form_of(name: str, tree: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """The form of a tree, in what JSON can hold; `of_leaf` gives that of a leaf, None or an object of one other name.

    Raises:
        DtypeError: a dict has a name that is no text. `name` begins the message.
    """
    if isinstance(tree, dict):
        strange = next((key for key in tree if not isinstance(key, str)), None)
        if strange is not None:
            raise DtypeError(f"[{name}] expected texts as names, found {described(strange)}")
        return {"dict": {key: form_of(name, branch, of_leaf) for key, branch in tree.items()}}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [form_of(name, branch, of_leaf) for branch in tree]}
    return of_leaf(tree)


def tree_of(form: Any, leaf: Callable[[str, Any], Any], path: str = "") -> Any:
    """The tree of a form, with `leaf(path, form)` at each leaf. Raises ValueError if a form is none."""
    if isinstance(form, Mapping) and len(form) == 1:
        [(kind, branches)] = form.items()
        if kind == "dict" and isinstance(branches, dict):
            return {key: tree_of(branch, leaf, f"{path}.{key}" if path else key) for key, branch in branches.items()}
        if kind in ("list", "tuple") and isinstance(branches, list):
            made = [tree_of(branch, leaf, f"{path}.{k}" if path else str(k)) for k, branch in enumerate(branches)]
            return made if kind == "list" else tuple(made)
        if kind in _BRANCHES:
            raise ValueError(f"expected a dict, list or tuple in the notes, found {form!r:.60}")
    return leaf(path, form)
