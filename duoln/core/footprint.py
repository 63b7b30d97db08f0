"""How much memory a call keeps for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from duoln import tree
from duoln.core.tape import pullback, tensors_of


def kept_bytes(fn: Callable[..., Any], params: Any, *args: Any) -> int:
    """The bytes of all that `fn(params, *args)` computes and keeps until its gradient is computed.

    The parameters and arguments themselves do not count, nor does what an operator uses and gives back at once.
    `fn` is run once; a library that computes lazily computes nothing.
    """
    given = {_owner(t.data)[0] for t in [*tree.leaves(params), *tensors_of(args)]}
    result, _, tape = pullback(fn, params, *args)
    try:
        held = dict(_owner(array) for record in tape.records for array in _arrays(record.saved))
        held.update(_owner(t.data) for t in tensors_of(result))
        return sum(size for owner, size in held.items() if owner not in given)
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


def _owner(array: Any) -> tuple[int, int]:
    """Which memory an array lies in, and its size: a view keeps all of the array that it looks at."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return id(array), int(array.nbytes)
