"""The contract of a compiled step, checked on every backend.

A step that passes can be traced once and replayed: inputs of one form always give outputs of one form (the tree of
shapes and dtypes), and the step sees few different forms of input.
"""

from __future__ import annotations

from typing import Any

from duoln.core.tensor import Tensor
from duoln.errors import CompileError

_SEQUENCES = list, tuple  # a union would be made anew at every leaf
MAX_INPUT_FORMS = 16
"""A step is traced once for each of so many forms of input; for all others it runs as it is."""


def form(tree: Any, leaves: list[Any]) -> Any:
    """The form of a tree of tensors: it is hashable, and equal for trees with equal paths, shapes and dtypes.

    The leaves are added to `leaves`, in their order.
    """
    if isinstance(tree, Tensor):  # asked first, because most are leaves
        leaves.append(tree)
        return (tree.data.shape, tree.data.dtype)
    if isinstance(tree, dict):
        kind: Any = type(tree)
        if kind is not dict:
            _check_attributes(tree)
            kind = kind, getattr(tree, "default_factory", None)
        return (kind, *tree, *[form(branch, leaves) for branch in tree.values()])
    if isinstance(tree, _SEQUENCES):
        kind = type(tree)
        if kind not in _SEQUENCES:
            _check_attributes(tree)
        return (kind, *[form(branch, leaves) for branch in tree])
    leaves.append(tree)
    return None


def _check_attributes(tree: Any) -> None:
    """Raises CompileError for a dict, list or tuple with attributes, which would be constants of the step."""
    attributes = getattr(tree, "__dict__", None)
    if attributes and attributes is not tree:
        raise CompileError(f"[compile] expected a tree whose entries are all it has, found {type(tree).__name__} with "
                           f"the attribute {next(iter(attributes))!r}, which would be a constant of the compiled step")
