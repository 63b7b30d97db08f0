"""The memory that a call keeps for its gradient."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from duoln import tree
from duoln.core.gradient import pullback, tensors_of


def kept_bytes(fn: Callable[..., Any], params: Any, *args: Any) -> int:
    """The bytes of the values that `fn(params, *args)` computes and keeps until its gradient is computed.

    The parameters and the arguments do not count, and neither does memory that an operator frees before it returns.
    `fn` is called once; a library that computes lazily computes nothing.
    """
    given = {id(owner(t.data)) for t in [*tree.leaves(params), *tensors_of(args)]}
    result, _, tape = pullback(fn, params, *args)
    try:
        arrays = [array for record in tape.records for array in _arrays(record.saved)]
        kept = {id(whole): whole for whole in map(owner, [*arrays, *(t.data for t in tensors_of(result))])}
        return sum(int(whole.nbytes) for key, whole in kept.items() if key not in given)  # a view keeps all of it
    finally:
        tape.close()


def _arrays(saved: Any) -> Iterator[Any]:
    """The native arrays in what a rule saved."""
    if isinstance(saved, list | tuple):
        for part in saved:
            yield from _arrays(part)
    elif isinstance(saved, dict):
        yield from _arrays(tuple(saved.values()))
    elif hasattr(saved, "nbytes"):
        yield saved


def owner(array: Any) -> Any:
    """The array that owns this array's memory: the array itself, or the one of which it is a view."""
    base = getattr(array, "base", None)
    while base is not None and hasattr(base, "nbytes"):
        array, base = base, getattr(base, "base", None)
    return array


def sole_owner(array: Any) -> Any:
    """The owner of this array's memory: itself, or the array of which it is the only view; None if there are others."""
    whole, holders = _owner_and_holders(array)
    return whole if whole is array or holders == _ONE_VIEW else None


def _owner_and_holders(array: Any) -> tuple[Any, int]:
    whole = owner(array)
    return whole, sys.getrefcount(whole)


_ONE_VIEW = _owner_and_holders(np.zeros(1)[:])[1]
"""The reference count of an array that one view of it alone holds."""
