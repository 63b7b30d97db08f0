"""The common part of both bridges: functions over trees of another library's arrays, and those of recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import check_function, described, did_you_mean, name_of
from duoln.errors import UsageError
from duoln.ops.recurrent.variants import CELLS, COMPARED, CellName, norm_shapes

Apply = Callable[[Callable[..., Sequence[Tensor]], Sequence[Any]], Iterable[Any]]
"""`apply(function of tensors, arrays)`: the arrays of the function's results."""
NORMS = {f"{part}_{which}": (module, name)
         for which, module in (("x", "layernorm_i"), ("h", "layernorm_h"), ("c", "layernorm_c"))
         for part, name in (("gain", "weight"), ("bias", "bias"))}
"""The module and the name in it of each parameter of a layer's norms, as `duoln.load_pytorch` reads them."""


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


def check_norm(name: str, cell: CellName, norm: str) -> None:
    """Raises UsageError for a norm that a layer of another library cannot have; the message lists the others."""
    reasons = {"batch": "; duoln.nn has it, with a population",
               "recurrent-bias": "; 'none' has the recurrent bias here",
               **dict.fromkeys(COMPARED, "; duoln.nn has it")}
    known = [each for each in CELLS[cell].variants if each not in reasons]
    if norm not in known:
        reason = reasons.get(norm) if isinstance(norm, str) else None
        raise UsageError(f"[{name}] expected a norm of {', '.join(known)}; found {described(norm)}"
                         f"{reason or did_you_mean(norm, known)}")


def sequence(cell: CellName, norm: str, eps: float, reverse: bool = False, bias: bool = True, mask: bool = False,
             ) -> Callable[..., Sequence[Tensor]]:
    """A cell over a sequence, as a pure function of x, the states, w_x, w_h, the bias and the mask if it has them, and
    the norms' parameters.

    Shape:
        x (T, B, in), states (B, H), w_x (in, gates * H), w_h (H, gates * H) -> hidden states (T, B, H), last states.
    """
    operator, states, names = getattr(ops, cell), len(CELLS[cell].states), list(norm_shapes(cell, norm, 1))

    def walk(x: Tensor, *arrays: Tensor) -> Sequence[Tensor]:
        rest = iter(arrays)
        arguments = [next(rest) for _ in range(states + 2)]
        of_bias, of_mask = (next(rest) if given else None for given in (bias, mask))
        results: tuple[Tensor, ...] = operator(x, *arguments, of_bias, of_mask, dict(zip(names, rest, strict=True)),
                                               norm=norm, eps=eps, reverse=reverse)
        return results

    walk.takes_long = True  # type: ignore[attr-defined]  # so PyTorch's threads are paused
    return walk
