"""The arena: memory for the values of all tables, at places that are used again after their last reader."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from duoln.core.step.symbol import Buffer
from duoln.kernels import host

_LINE = 64
"""Bytes of a cache line, on which each value begins."""


class Tenant(Protocol):
    """A table with places in the arena."""

    def leave(self) -> None:
        """Give them up."""


class Arena:
    """The memory of all tables' values, which one call has at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._tables: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._of_tables = threading.Lock()
        self.memory = np.empty(0, np.uint8)

    def enter(self, table: Tenant) -> None:
        """Let a table be told when its places end."""
        with self._of_tables:
            self._tables.add(table)

    def reserve(self, size: int) -> None:
        """Make it at least so large. Tables that have their places in it get new ones."""
        if self.memory.nbytes < size:
            with self._of_tables:
                tables = list(self._tables)
            for table in tables:
                table.leave()
            self.memory = host.empty((size,), self.memory.dtype)


arena = Arena()


def assign_offsets(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], int]:
    """The place of each buffer, so that those that live at one time are apart, and the bytes of all.

    The largest comes first, and each gets the lowest place that is free while it lives. A step over 150 time steps has
    5,000 buffers, so the ones that are placed are compared at once.
    """
    ordered = sorted(buffers, key=lambda b: -b.size)
    first, last, begin, end = np.zeros((4, len(ordered)), np.int64)
    for k, buffer in enumerate(ordered):
        others = np.flatnonzero((first[:k] <= buffer.last) & (last[:k] >= buffer.first))
        others = others[np.argsort(begin[others])]
        free_from = np.maximum.accumulate(np.concatenate(([0], end[others])))
        fits = np.flatnonzero(begin[others] - free_from[:-1] >= buffer.size)
        begin[k] = free_from[fits[0] if fits.size else -1]
        first[k], last[k], end[k] = buffer.first, buffer.last, begin[k] + -(-buffer.size // _LINE) * _LINE
    return dict(zip(ordered, begin.tolist(), strict=True)), int(end.max(initial=0))
