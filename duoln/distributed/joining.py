"""The join of a process to the group that trains one model: meeting, engine, and a check of both."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np

from duoln.backends.protocol import Backend
from duoln.distributed.meeting import Meeting, meet
from duoln.distributed.rank_info import RankInfo
from duoln.distributed.ranks import Group, Ranks
from duoln.errors import RankError, UsageError

ENGINES = {"mlx": "ring", "cupy": "nccl"}
"""The module with the engine of each array library. It has a function `join(meeting)`, which returns a `Group`."""
ENGINE_SECONDS = 60.0
"""The time limit of an engine that connects ranks that have met; MLX's ring tries for half of that."""


def join_ranks(info: RankInfo, backend: Backend, tell: Callable[[str], None]) -> Ranks:
    """Meet the other ranks, connect the engine, and check that it connects the processes that have met.

    Args:
        info: the rank of this process, and the meeting point.
        backend: where to compute.
        tell: called with a sentence about each refused connection.

    Raises:
        UsageError: the backend has no engine, or the settings of the ranks differ.
        RankError: the others cannot be reached, or the engine has connected a process that is not one of them.
    """
    check_engine(backend.name)
    meeting = meet(info, backend.name, tell)
    try:
        with time_limit(ENGINE_SECONDS, f"[ranks] rank {info.rank}: the engine of {backend.name} did not connect all "
                        f"{info.size} ranks within {ENGINE_SECONDS:g} s"):
            group = connect(backend.name, meeting)
            check_members(group, backend, meeting)
    finally:
        meeting.close()
    return Ranks(group, backend)


def check_engine(library: str) -> None:
    """Raises UsageError for an array library without an engine."""
    if library not in ENGINES:
        raise UsageError(f"[ranks] expected a backend of {', '.join(ENGINES)}, found {library}: it has no engine that "
                         f"adds arrays over processes; say --backend {next(iter(ENGINES))}")


def connect(library: str, meeting: Meeting) -> Group:
    """Join the group of all processes that have met; returns when all are connected.

    Raises:
        RankError: the engine is not installed, or the others cannot be reached.
    """
    try:
        module = importlib.import_module(f"duoln.distributed.{ENGINES[library]}")
    except ImportError as error:
        raise RankError(f"[ranks] the engine {ENGINES[library]} of {library} cannot be loaded: {error}") from error
    group: Group = module.join(meeting)
    return group


def check_members(group: Group, backend: Backend, meeting: Meeting) -> None:
    """Check that the engine connects the processes that have met, before it sends any data: each gives numbers that
    need the token, and their sum must be right on every rank.

    Raises:
        RankError: it is not.
    """
    nonces = "".join(meeting.gather(secrets.token_hex(16)))
    numbers = [np.frombuffer(meeting.secret(f"{rank} {nonces}"), np.uint8).astype(np.float32)
               for rank in range(meeting.size)]
    total = backend.to_numpy(group.all_sum(backend.asarray(numbers[meeting.rank])))
    right = meeting.gather(bool(np.array_equal(total, sum(numbers))))
    if not all(right):
        raise RankError("[ranks] the engine has connected a process that does not know this run's token: what it sent "
                        f"reached rank {', '.join(str(k) for k, passed in enumerate(right) if not passed)}. "
                        "Nothing of the model was sent")


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """End this process with a message if the block takes longer: an engine that waits cannot be interrupted."""
    def end() -> None:
        print(f"duoln: {message}", file=sys.stderr, flush=True)
        os._exit(RankError.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    # MLX's ring keeps the interpreter's lock while it connects, so no thread of Python runs. The timer of faulthandler
    # does not need the lock.
    faulthandler.dump_traceback_later(seconds + 5, exit=True, file=sys.__stderr__ or 2)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()
