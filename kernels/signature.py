"""The declaration of a kernel's parameters: `"x: float32[2], gain: float32[1]?, width: int32, eps: float32"`.

A parameter is a number or an array of a dtype and rank; `?` lets it be None.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PARAMETER = re.compile(r"(\w+): (\w+)(?:\[(\d)\])?(\?)?$")


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    name: str
    dtype: str
    rank: int | None
    """None for a number."""
    optional: bool

    def __str__(self) -> str:
        return self.dtype if self.rank is None else f"a contiguous {self.dtype} array of {self.rank} dimensions"


def parameters(signature: str) -> list[Parameter]:
    """The parameters that a signature declares."""
    declared = []
    for piece in signature.split(","):
        match = _PARAMETER.match(" ".join(piece.split()))
        if not match:
            raise ValueError(f"expected 'name: dtype', 'name: dtype[rank]' or 'name: dtype[rank]?', found {piece!r}")
        name, dtype, rank, optional = match.groups()
        declared.append(Parameter(name, dtype, int(rank) if rank else None, bool(optional)))
    return declared
