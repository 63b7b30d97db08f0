"""Small kernels that measure the device itself, not an operator; `duoln.bench` runs them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duoln.kernels import native
from duoln.kernels.elementwise.engine import ENGINE, TEXT, formula_function
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout

THREADS = 256
EXCHANGING = 128
"""The number of blocks that exchange, at most one per multiprocessor, so that all run at once; and the threads of each.
"""
PUSHES = tuple({"CLUSTER": 16, "THREADS": 256, "WIDTH": width} for width in (4, 8, 16, 1024))
"""Bytes of a push, in the largest clusters; the last is one copy for each block."""


def _of_memory(processors: int) -> Layout:
    return Layout((processors * 16,), (THREADS,))


def _of_blocks(blocks: int) -> Layout:
    return Layout((blocks,), (EXCHANGING,))


_MEMORY, _EXCHANGE = "device_limits/memory", "device_limits/exchange"
_SIGNALS = "rounds: int32, blocks: int32"
COPY = Launch(_MEMORY, "device_copy", "x: real[values], y: own, count: int32", _of_memory)
WRITE = Launch(_MEMORY, "device_write", "y: own, count: int32", _of_memory)
READ = Launch(_MEMORY, "device_read", "x: real[values], never: own, count: int32", _of_memory)
NOTHING = Launch(_MEMORY, "device_nothing", "count: int32", lambda: Layout((1,), (32,)))
BY_FLAGS = Launch(_EXCHANGE, "exchange_by_flags", f"flags: own uint32, {_SIGNALS}", _of_blocks)
TOLD_IN_CLUSTER = Launch(_EXCHANGE, "tell_in_cluster", f"heard: own uint32, {_SIGNALS}", _of_blocks)


def _push_layout(macros: dict[str, int]) -> Callable[..., Layout]:
    return lambda: Layout((macros["CLUSTER"],), (macros["THREADS"],), macros, cluster=macros["CLUSTER"])


PUSH = {macros["WIDTH"]: Launch("device_limits/push", "push_in_cluster", "heard: own uint32, rounds: int32",
                                _push_layout(macros)) for macros in PUSHES}

# The CPU's memory: a library's own copy reads what it overwrites, so it moves half as much again as it says.
streaming_copy = formula_function("copy")
"""A copy of a contiguous array, with all threads; one of 8 MiB or more is written with streaming stores."""


def streaming_refusal() -> str | None:
    """The reason why there is no such copy of float32 here; None if there is one."""
    return native.refusal(ENGINE, np.dtype(np.float32)) or native.refusal(TEXT, np.dtype(np.float32))
