"""Lists of tensors that a kernel takes by value, as tensors.cuh describes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

TENSORS = {"CHUNK": 4096, "MOST": 56}
"""The macros of the texts that take such lists."""
_MOST, _CHUNK = TENSORS["MOST"], TENSORS["CHUNK"]
THREADS = 256
"""The threads of a block."""


class Tensors:
    """A list that one launch takes.

    Args:
        roles: the arrays of each role, at most MOST in each; those of one tensor have one size.
        first: the number of the list's first block, counted over all lists of a call.
    """

    def __init__(self, roles: Sequence[Sequence[Any]], first: int) -> None:
        self.first = first
        sizes = [a.size for a in roles[0]]
        blocks = [-(-size // _CHUNK) for size in sizes]
        self.blocks = sum(blocks)
        self.by_value = np.zeros(1, _layout(len(roles)))
        value = self.by_value[0]
        for k, arrays in enumerate(roles):
            value["at"][k, :len(arrays)] = [a.data.ptr for a in arrays]
        value["sizes"][:len(sizes)] = sizes
        value["starts"][:] = self.blocks
        value["starts"][:len(sizes)] = [sum(blocks[:k]) for k in range(len(sizes))]

    @classmethod
    def of(cls, *roles: Sequence[Any]) -> list[Tensors]:
        """The lists of all tensors; lists without values are left out."""
        return list(cls._pieces(roles))

    @classmethod
    def _pieces(cls, roles: Sequence[Sequence[Any]]) -> Iterator[Tensors]:
        first = 0
        for k in range(0, len(roles[0]), _MOST):
            piece = cls([arrays[k:k + _MOST] for arrays in roles], first)
            first += piece.blocks
            if piece.blocks:
                yield piece


@cache
def _layout(roles: int) -> np.dtype[Any]:
    return np.dtype([("at", np.uint64, (roles, _MOST)), ("sizes", np.int32, (_MOST,)),
                     ("starts", np.int32, (_MOST + 1,)), ("unused", np.int32)])
