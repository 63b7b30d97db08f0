"""The declaration of a kernel's parameters: `"x: float32[2], gain: float32[1]?, width: int32, eps: float32"`.

A parameter is a number or an array of a dtype and rank; `?` lets it be None. The rows of an array with `+`, such as
`float32[2+]`, are contiguous, with any row stride. `struct` without a rank is a structure that a CUDA kernel takes
by value; the argument for it is a NumPy array of one structured value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STRUCT = "struct"
"""The dtype of a parameter that is a structure."""
_PARAMETER = re.compile(r"(\w+): (\w+)(?:\[(\d)(\+)?\])?(\?)?$")


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    name: str
    dtype: str
    rank: int | None
    """None for a number."""
    apart: bool
    """True if rows may be apart."""
    optional: bool

    def __str__(self) -> str:
        if self.dtype == STRUCT:
            return "an array of one structure on the host"
        if self.rank is None:
            return self.dtype
        if self.apart:
            return f"a {self.dtype} array of {self.rank} dimensions with contiguous rows"
        return f"a contiguous {self.dtype} array of {self.rank} dimensions"


def parameters(signature: str) -> list[Parameter]:
    """The parameters that a signature declares.

    Raises:
        ValueError: a piece between two commas is no declaration.
    """
    declared = []
    for piece in signature.split(","):
        match = _PARAMETER.match(" ".join(piece.split()))
        if not match:
            raise ValueError(f"expected 'name: dtype', 'name: dtype[rank]' or 'name: dtype[rank]?', found {piece!r}")
        name, dtype, rank, apart, optional = match.groups()
        declared.append(Parameter(name, dtype, int(rank) if rank else None, bool(apart), bool(optional)))
    return declared
