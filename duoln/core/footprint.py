"""How much memory a call keeps for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from duoln import tree
from duoln.core.gradient import pullback, tensors_of


def kept_bytes(fn: Callable[..., Any], params: Any, *args: Any) -> int:
    """The bytes of all that `fn(params, *args)` computes and keeps until its gradient is computed.

    The parameters and arguments themselves do not count, nor does what an operator uses and gives back at once.
    `fn` is run once; a library that computes lazily computes nothing.
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
    """The array whose memory this one lies in: itself, or what it is a view of."""
    base = getattr(array, "base", None)
    while base is not None and hasattr(base, "nbytes"):
        array, base = base, getattr(base, "base", None)
    return array
