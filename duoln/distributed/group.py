"""Processes that train one model: one engine per array library, with the same three functions.

`join` makes this process a member, `all_sum` adds an array over all members, `leave` ends it.
"""

from __future__ import annotations

import importlib
from typing import Protocol

from duoln.backends.protocol import Array
from duoln.distributed.meeting import Meeting
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
        """Leave the group."""


def check_engine(library: str) -> None:
    """Check that there is an engine for an array library.

    Raises:
        UsageError: there is none.
    """
    if library not in ENGINES:
        raise UsageError(f"[ranks] expected a backend of {', '.join(ENGINES)}, found {library}: it has no engine that "
                         f"adds arrays over processes; say --backend {next(iter(ENGINES))}")


def join(library: str, meeting: Meeting) -> Group:
    """Join the group of all processes that have met; returns when all are connected.

    Raises:
        UsageError: the library has no engine.
        RankError: the engine is not installed, or the others cannot be reached.
    """
    check_engine(library)
    engine = ENGINES[library]
    try:
        module = importlib.import_module(f"duoln.distributed.{engine}")
    except ImportError as error:
        raise RankError(f"[ranks] the engine {engine} of {library} cannot be loaded: {error}") from error
    group: Group = module.join(meeting)
    return group
