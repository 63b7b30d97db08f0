"""`split` in NumPy: gradients of the parts that already lie side by side in one array are not copied together.

Those of attention's queries, keys and values do, where one product made all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.kernels import host
from duoln.ops import split

_COMPOSED = split.rules("numpy")[-1]


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> tuple[Array | None, ...]:
    _, _, axis = saved
    whole = host.side_by_side(gouts, axis)
    if whole is not None:
        return (whole,)
    assert _COMPOSED.vjp is not None
    return tuple(_COMPOSED.vjp(be, saved, gouts, needs))


def attach(backend: str) -> None:
    """Add the rule to `split` of NumPy's arrays."""
    if backend == "numpy":
        split.add(replace(_COMPOSED, name="side by side", vjp=_vjp), backend="numpy")
