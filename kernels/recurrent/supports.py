"""The conditions that recurrent rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.kernels import native

Reason = Callable[..., str | None]
"""A function of the arguments: it returns None, or the reason why a rule cannot run."""


def bounds_unmasked(cell: str, supports: Reason) -> Reason:
    """The condition of a rule over sequences that bounds the gradients between time steps of all rows alike."""
    mask_place = 5 if cell == "lstm" else 4  # behind the states, both weights and the bias

    def reason(be: Backend, x: Array, *arrays: Array | None, gradient_limit: float | None = None,
               **attrs: Any) -> str | None:
        if gradient_limit is not None and arrays[mask_place] is not None:
            return "it does not bound gradients between time steps under a mask"
        return supports(be, x, *arrays, **attrs)

    return reason


def supports(variants: Sequence[str]) -> Reason:
    """The condition of the CPU's rules for these variants."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", eps: float = 1e-5,
               **unused: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no fused rule"
        return None if x.size and h.size else "there are no values"

    return reason


def supports_compiled(file: str, variants: Sequence[str]) -> Reason:
    """The condition of a compiled rule in `kernels/<file>` for these variants."""
    fused = supports(variants)

    def reason(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
        return fused(be, x, *arrays, **attrs) or native.failure(file, x.dtype)

    return reason
