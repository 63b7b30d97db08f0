"""The limits of a CUDA device as rows of `duoln bench`: memory, launches, a product, exchanges between blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from duoln import runtime
from duoln.bench import machine
from duoln.bench.clock import Work
from duoln.bench.row import Row
from duoln.errors import KernelError
from duoln.kernels.device_limits import (
    BY_FLAGS,
    COPY,
    EXCHANGING,
    NOTHING,
    PUSH,
    PUSHES,
    READ,
    TOLD_IN_CLUSTER,
    WRITE,
)
from duoln.kernels.launch import Launch

MIB = 256
"""Size of each buffer: more than any L2 cache."""
ROUNDS = 10_000
"""Exchanges of one launch, so many that the launch is nothing beside them."""
_CLUSTER = 8


class Limit(NamedTuple):
    """A launch, and how much it moves."""

    launch: Launch | None
    """None for a product of CuPy."""
    moved: int | None = None
    blocks: int = 0
    """Those that exchange signals, `ROUNDS` times in a launch; 0 for a launch without."""
    is_push: bool = False


LIMITS: Mapping[str, Limit] = {
    "device copy": Limit(COPY, 2 * MIB << 20), "device read": Limit(READ, MIB << 20),
    "device write": Limit(WRITE, MIB << 20), "launch of our kernel": Limit(NOTHING),
    "product 64 x 256 x 1024": Limit(None),
    "exchange by flags": Limit(BY_FLAGS, None, EXCHANGING),
    "push and wait in a cluster": Limit(TOLD_IN_CLUSTER, None, _CLUSTER),
    **{f"push by {each['WIDTH']} bytes in a cluster": Limit(
        PUSH[each["WIDTH"]], each["CLUSTER"] * each["THREADS"] * 4, each["CLUSTER"], True) for each in PUSHES}}
"""A launch that may end the context comes last. A push moves these bytes out of one block."""


def _starter(limit: Limit, cupy: Any, signals: Any, blocks: int) -> Callable[[], Any]:
    """A function that launches it once."""
    if limit.launch is None:
        left, right = cupy.ones((64, 256), dtype="float32"), cupy.ones((256, 1024), dtype="float32")
        return partial(cupy.matmul, left, right, out=cupy.empty((64, 1024), dtype="float32"))
    if limit.blocks:
        return partial(limit.launch["cupy"], signals, ROUNDS, *([] if limit.is_push else [blocks]))
    x, y = (cupy.ones(MIB << 18, dtype="float32") for _ in range(2))
    launch: Callable[[], Any] = limit.launch.bind({"x": x, "y": y, "never": y, "count": MIB << 16})
    return launch


def prepare(row: Row, asked: Mapping[str, Any]) -> Work:
    """The work of a row.

    Raises:
        KernelError: blocks do not hear each other, or the device has no clusters.
    """
    from duoln.kernels.launch.cuda import multiprocessors

    backend: Any = runtime.backend(asked["backend"])
    limit = LIMITS[row.op]
    blocks = min(limit.blocks, multiprocessors())  # all run at once
    signals = backend.xp.zeros(max(blocks, 1), dtype="uint32")
    launch = _starter(limit, backend.xp, signals, blocks)

    def call(k: int) -> list[Any]:
        if limit.blocks:
            signals.fill(0)
        launch()
        return [signals]

    backend.wait(call(0))
    if limit.blocks and int(signals.min()) < ROUNDS:
        raise KernelError("[bench] blocks do not hear each other, or the device has no clusters")
    return Work(call, [], {"backend": machine.backend_facts(backend)}, backend.wait,
                parts=ROUNDS if limit.blocks else 1, capture=backend.device_seconds)
