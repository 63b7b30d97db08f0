"""Processes that train one model: one engine per array library behind one interface of three functions.

`join` makes this process a member, `all_sum` adds an array over all members, `leave` ends it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

from duoln.backends.protocol import Array
from duoln.errors import RankError, UsageError

ENGINES = {"mlx": "ring", "cupy": "nccl"}
"""The module here that works with each array library's arrays."""


class Group(Protocol):
    """This process among several, numbered from 0."""

    rank: int
    size: int

    def all_sum(self, x: Array) -> Array:
        """The sum of all members' `x`, of one shape and dtype; equal to the bit on every member, and every time.

        Raises:
            RankError: another member is gone.
        """

    def leave(self) -> None:
        """Let go of the others."""


def join(library: str, rank: int, addresses: Sequence[str]) -> Group:
    """Become member `rank` of a group; returns once every member is there.

    Args:
        library: the array library's name, as of a backend.
        rank: which of the addresses is ours.
        addresses: HOST:PORT of every member, free to listen on.

    Raises:
        UsageError: the library has no engine.
        RankError: the engine is not installed, or the others cannot be reached.
    """
    if library not in ENGINES:
        raise UsageError(f"[ranks] expected a backend of {', '.join(ENGINES)}, found {library!r}: it has no engine "
                         "that adds arrays over processes")
    engine = ENGINES[library]
    try:
        module = importlib.import_module(f"duoln.distributed.{engine}")
    except ImportError as error:
        raise RankError(f"[ranks] the engine {engine} of {library} cannot be loaded: {error}") from error
    group: Group = module.join(rank, addresses)
    return group
