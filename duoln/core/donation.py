"""Donation: an optimizer may overwrite the memory of tensors that it is given, and nobody reads them after that.

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


class _DonatedArray:
    """Stands for the array of a tensor that was donated."""

    def __getattr__(self, name: str) -> Never:
        raise UsageError("[Tensor] expected a tensor that was not donated, found one that an optimizer with "
                         "donate=True was given; go on with what its update returned. copy.deepcopy(params) before the "
                         "update keeps the old values")


_SPENT = _DonatedArray()


def mark_donated(tensors: Iterable[Tensor]) -> None:
    """Let every later reading of these tensors raise UsageError."""
    for x in tensors:
        x.data = _SPENT


def is_donated(x: Tensor) -> bool:
    """True if the tensor was donated."""
    return x.data is _SPENT


def _refcounts(tensors: Sequence[Tensor]) -> set[int]:
    return {sys.getrefcount(x.data) for x in tensors}


_ALONE = _refcounts([Tensor(np.zeros(1), cast(Backend, object()))])
"""The reference count of arrays that only their tensors hold."""


def unshared_array(x: Tensor) -> Array:
    """The tensor's array, or a copy if something else holds it too."""
    if x.backend.lazy or x.backend.queues:
        return x.data  # a lazy array is not overwritten; a CUDA graph holds the arrays that it overwrites
    return x.data if _refcounts([x]) == _ALONE else x.data.copy()


def unshared_tensor(x: Tensor) -> Tensor:
    """The tensor, or one with a copy of its array, see `unshared_array`."""
    array = unshared_array(x)
    return x if array is x.data else Tensor(array, x.backend)


def arrays_of_step(leaves: Sequence[Tensor], donated: Sequence[int]) -> list[Array]:
    """The arrays of a compiled step's arguments. Those that it donates, by their numbers, are no other argument too."""
    if not donated or (be := leaves[0].backend).lazy or compiled_step.get() is not None:
        return [x.data for x in leaves]
    names = [id(x.data) for x in leaves]
    if len(set(names)) == len(names) and (be.queues or _refcounts([leaves[k] for k in donated]) <= _ALONE):
        return [x.data for x in leaves]
    given = set(donated)
    return [x.data if k not in given else x.data.copy() if names.count(names[k]) > 1 else unshared_array(x)
            for k, x in enumerate(leaves)]
