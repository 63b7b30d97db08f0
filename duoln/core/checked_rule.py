"""Checks what the rules of other packages give: results and gradients, by the shapes and dtypes of the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from duoln.backends.protocol import Backend
from duoln.core.arguments import described
from duoln.core.rule import Rule
from duoln.core.tensor import Tensor
from duoln.errors import GradientError, ShapeError


def checked_rule(name: str, likes: Sequence[int | None] | None, rule: Rule, natives: Sequence[Any], out: Any) -> Rule:
    """The rule of another package's operator for one call, after a check of its results; it checks its gradients too.

    Raises:
        GradientError: by the rule's vjp, for a gradient of another shape or dtype than its array.
        ShapeError: a result is not like the array of which the declaration says so.
    """
    outs = out if isinstance(out, tuple) else (out,)
    for k, (made, place) in enumerate(zip(outs, likes or (), strict=False)):
        like = None if place is None else natives[place]
        if like is not None and _shape_and_dtype(made) != _shape_and_dtype(like):
            raise ShapeError(f"[{name}] rule '{rule.name}': expected output {k} like array {place}, "
                             f"{_array_words(like)}; found {_array_words(made)}")
    vjp = rule.vjp
    if vjp is None or rule.pooled:
        return rule

    def checked_vjp(be: Backend, saved: Any, gout: Any, needs: Sequence[bool]) -> Any:
        gradients = vjp(be, saved, gout, needs)
        if isinstance(gradients, tuple | list) and len(gradients) == len(natives):  # else the tape explains it
            for k, (x, gradient, need) in enumerate(zip(natives, gradients, needs, strict=True)):
                if need and _shape_and_dtype(gradient) != _shape_and_dtype(x):
                    raise GradientError(f"[{name}] rule '{rule.name}': expected as gradient {k} one like its array, "
                                        f"{_array_words(x)}; found {_array_words(gradient)}")
        return gradients

    return replace(rule, vjp=checked_vjp)


def _shape_and_dtype(x: Any) -> tuple[Any, Any]:
    """Shape and dtype of a native array; of anything else what tells it from one."""
    if isinstance(x, Tensor) or not hasattr(x, "shape"):
        return None, type(x)
    return tuple(x.shape), x.dtype


def _array_words(x: Any) -> str:
    shape, dtype = _shape_and_dtype(x)
    return described(x) if shape is None else f"{getattr(dtype, 'name', dtype)} of shape {shape}"
