"""The arena: memory for the values of all tables, at places that are used again after their last reader."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from duoln.core.step.symbol import Buffer

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
            raw = np.empty(size + _LINE, np.uint8)
            first = -raw.__array_interface__["data"][0] % _LINE
            self.memory = raw[first:first + size]


arena = Arena()


def placed(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], int]:
    """The place of each buffer, so that those that live at one time are apart, and the bytes of all."""
    places: dict[Buffer, int] = {}
    for buffer in sorted(buffers, key=lambda b: -b.size):
        taken = sorted((places[b], places[b] + b.size) for b in places
                       if b.first <= buffer.last and buffer.first <= b.last)
        at = 0
        for begin, end in taken:
            if at + buffer.size <= begin:
                break
            at = max(at, -(-end // _LINE) * _LINE)
        places[buffer] = at
    return places, max((at + b.size for b, at in places.items()), default=0)
