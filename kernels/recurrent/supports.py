"""The conditions that the recurrent rules of the CPU share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend


def supports(variants: Sequence[str]) -> Callable[..., str | None]:
    """A function of the arguments: it returns None, or the reason why a rule for these variants cannot run."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", eps: float = 1e-5,
               eps_place: str = "inside", **unused: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no fused rule"
        if eps_place != "inside":
            return "epsilon is outside the root"
        return None if x.size and h.size else "there are no values"

    return reason
