"""The contract of a compiled step, checked on every backend, also on those that compile nothing.

A step that passes can be traced once and replayed: inputs of one form always give outputs of one form (the tree of
shapes and dtypes), and the step sees few different forms of input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duoln.errors import CompileError

_SEQUENCES = list, tuple  # a union would be made anew at every leaf
MAX_INPUT_FORMS = 16
"""A compiling backend traces once for each form of the input; more than this many is a mistake."""


def checked_step(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with a check: it raises CompileError if its outputs change form or its inputs have too many forms."""
    outputs_of: dict[Any, Any] = {}

    def step(*args: Any) -> Any:
        given = form(args)
        if given not in outputs_of and len(outputs_of) >= MAX_INPUT_FORMS:
            raise CompileError(f"[compile] {MAX_INPUT_FORMS + 1} different forms of input; each would be traced "
                               f"anew, so declare a small set of shapes. The last: {given}")
        result = fn(*args)
        actual = form(result)
        expected = outputs_of.setdefault(given, actual)
        if actual != expected:
            raise CompileError(f"[compile] the step's result changed form: expected {expected}, found {actual}")
        return result

    return step


def form(tree: Any) -> Any:
    """The form of a tree of arrays: it is hashable, and equal for trees with equal paths, shapes and dtypes."""
    if hasattr(tree, "shape"):  # asked first, because most are leaves
        return (tree.shape, tree.dtype)
    if isinstance(tree, dict):
        return ("dict", *tree, *[form(branch) for branch in tree.values()])
    if isinstance(tree, _SEQUENCES):
        return (type(tree).__name__, *[form(branch) for branch in tree])
    return tree
