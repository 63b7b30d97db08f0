"""Donation: an optimiser may overwrite the memory of tensors that it is given, and nobody reads them after that.

A tensor that was given raises an error wherever it is read, on every backend, whether its memory was overwritten or
not. Another tensor or array that shares the memory, such as a slice, keeps its values: then a copy is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Never, cast

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.tensor import Tensor
from duoln.errors import UsageError

compiled_step: ContextVar[Callable[..., Any] | None] = ContextVar("compiled_step", default=None)
"""The function of the compiled step around, which looks at its arguments itself; None outside of one."""


class _Spent:
    """Stands for the array of a tensor that was donated."""

    def __getattr__(self, name: str) -> Never:
        raise UsageError("[Tensor] expected a tensor that was not donated, found one that an optimiser with "
                         "donate=True was given; go on with what its update returned. copy.deepcopy(params) before the "
                         "update keeps the old values")


_SPENT = _Spent()


def spend(tensors: Iterable[Tensor]) -> None:
    """Let every later reading of these tensors raise UsageError."""
    for x in tensors:
        x.data = _SPENT


def is_spent(x: Tensor) -> bool:
    """True if the tensor was donated."""
    return x.data is _SPENT


def _holders(x: Tensor) -> int:
    return sys.getrefcount(x.data)


_ALONE = _holders(Tensor(np.zeros(1), cast(Backend, object())))
"""The reference count of an array that only its tensor holds."""


def own_array(x: Tensor, references: int = 0) -> Array:
    """The tensor's array, or a copy if something else holds it too.

    `references` is how many the caller has, beside that of the tensor.
    """
    if x.backend.lazy or x.backend.queues:
        return x.data  # a lazy array is not overwritten; a CUDA graph holds the arrays that it overwrites
    return x.data if _holders(x) <= _ALONE + references else x.data.copy()


def own(x: Tensor) -> Tensor:
    """The tensor, or one with a copy of its array, see `own_array`."""
    array = own_array(x)
    return x if array is x.data else Tensor(array, x.backend)


def arrays_of_step(leaves: Sequence[Tensor], donated: Sequence[int]) -> list[Array]:
    """The arrays of a compiled step's arguments. Those that it donates, by their numbers, are no other argument too."""
    natives = [x.data for x in leaves]
    if not donated or leaves[0].backend.lazy or compiled_step.get() is not None:
        return natives
    is_any_twice = len(set(map(id, natives))) < len(natives)
    for k in donated:
        if is_any_twice and sum(x is natives[k] for x in natives) > 1:
            natives[k] = natives[k].copy()
        else:
            natives[k] = own_array(leaves[k], references=1)
    return natives
