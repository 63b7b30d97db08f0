"""Functions of trees of duoln's tensors as functions of trees of another library's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from duoln import tree
from duoln.core import Tensor
from duoln.core.arguments import check_function, name_of

Apply = Callable[[Callable[..., Sequence[Tensor]], Sequence[Any]], Iterable[Any]]
"""`apply(function of tensors, arrays)`: the arrays of the function's results."""


def over_trees(fn: Callable[..., Any], kind: type, apply: Apply) -> Callable[..., Any]:
    """A function that computes `fn`, with arrays of another library, of this kind, in the place of tensors."""
    check_function("differentiable", "fn", fn)

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = tree.leaves((args, kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, kind)]
        result: Any = None

        def of_tensors(*tensors: Tensor) -> list[Tensor]:
            nonlocal result
            whole = list(leaves)
            for k, x in zip(places, tensors, strict=True):
                whole[k] = x
            of_args, of_kwargs = tree.unflatten((args, kwargs), whole)
            result = fn(*of_args, **of_kwargs)
            return [leaf for leaf in tree.leaves(result) if isinstance(leaf, Tensor)]

        arrays = iter(apply(of_tensors, [leaves[k] for k in places]))
        return tree.map(lambda leaf: next(arrays) if isinstance(leaf, Tensor) else leaf, result)

    run.__name__ = run.__qualname__ = f"differentiable({name_of(fn)})"
    return run
