"""Clipping of gradients: functions of a tree of gradients, for an optimizer's `clip`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import ABOVE_0, check_function, check_number

Params = Any
"""A tree of tensors."""
Clip = Callable[[Params], Params]


def global_norm(gradients: Params) -> Tensor:
    """The Euclidean norm of all gradients together, as a 0-d tensor."""
    return ops.global_norm(*tree.leaves(gradients))


@dataclass(frozen=True)
class ScaleByNorm:
    """All gradients times `scale_of(norm)`. Adam multiplies while it reads them, without a pass of its own."""

    scale_of: Callable[[Tensor], Tensor]
    """The multiplier as a function of the common norm of all gradients; both are 0-d tensors."""

    def __post_init__(self) -> None:
        check_function("scale_by_norm", "scale_of", self.scale_of)

    def __call__(self, gradients: Params) -> Params:
        if not tree.leaves(gradients):
            return gradients
        by = self.scale_of(global_norm(gradients))
        return tree.map(lambda g: g * by, gradients)


def clip_global_norm(limit: float) -> Clip:
    """Scale all gradients by one number, so that their common norm is at most `limit` (Pascanu et al. 2013)."""
    _check_limit("clip_global_norm", limit)
    return scale_by_norm(Shrink(limit))


def scale_by_norm(scale_of: Callable[[Tensor], Tensor]) -> Clip:
    """Multiply all gradients by `scale_of(norm)`, a 0-d tensor; `norm` is the common norm of all gradients."""
    return ScaleByNorm(scale_of)


def clip_each_norm(limit: float) -> Clip:
    """Scale each gradient separately, so that its norm is at most `limit` (order-embedding's `maxnorm`)."""
    _check_limit("clip_each_norm", limit)
    return _ClipEachNorm(limit)


def clip_value(limit: float) -> Clip:
    """Clip each entry of each gradient to -limit .. limit."""
    _check_limit("clip_value", limit)
    return ClipValue(limit)


# These are classes, not closures, so that an optimizer can be pickled, and equals its copy.

@dataclass(frozen=True)
class Shrink:
    """The number by which gradients of a norm are multiplied, so that their norm is at most `limit`."""

    limit: float

    def __call__(self, norm: Tensor) -> Tensor:
        return self.limit / ops.maximum(norm, self.limit)


@dataclass(frozen=True)
class _ClipEachNorm:
    limit: float

    def __call__(self, gradients: Params) -> Params:
        return tree.map(lambda g: g * Shrink(self.limit)(ops.vector_norm(g)), gradients)


@dataclass(frozen=True)
class ClipValue:
    """Each entry of each gradient clipped to -limit .. limit."""

    limit: float

    def __call__(self, gradients: Params) -> Params:
        return tree.map(lambda g: ops.clip(g, -self.limit, self.limit), gradients)


def _check_limit(name: str, limit: float) -> None:
    check_number(name, "limit", limit, ABOVE_0)
