"""The limits of a CUDA device: memory, launches, exchanges between blocks.

If a figure cannot be measured, the reason takes its place, and the other figures are still measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy

from duoln.kernels.device_limits import (
    BY_COUNTER,
    BY_FLAGS,
    COPY,
    EXCHANGING,
    IN_CLUSTER,
    NOTHING,
    PUSH,
    PUSHES,
    READ,
    TOLD_IN_CLUSTER,
    WRITE,
)
from duoln.kernels.launch import Launch, cuda as launch

MIB = 256
"""Size of each buffer: more than any L2 cache."""
_ROUNDS = 1000
"""Exchanges of one launch."""
_CLUSTER = 8


def figures(mib: int = MIB, rounds: int = 9, launches: int = 200) -> Iterator[tuple[str, float | str]]:
    """Figures by name, the unit in the name: medians over `rounds`, from the slope over k and 2 k launches."""
    ways: dict[str, Callable[[], float]] = {
        **_memory(mib, rounds, max(launches // 20, 1)), **_steps(rounds, launches),
        **_exchanges(rounds), **_pushes(rounds)}  # what may end the context comes last
    yield "multiprocessors", launch.multiprocessors()
    for name, figure in ways.items():
        try:
            yield name, figure()
        except Exception as error:  # the driver or the compiler may fail for one of them
            yield name, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _memory(mib: int, rounds: int, launches: int) -> dict[str, Callable[[], float]]:
    count = mib << 16  # of 16 bytes
    x, y = cupy.ones(4 * count, dtype="float32"), cupy.empty(4 * count, dtype="float32")
    moved = 16 * count / 1e9
    given = {"x": x, "y": y, "never": y, "count": count}
    return {
        "copy GB/s": lambda: 2 * moved / _slope(COPY.bind(given), launches, rounds),
        "read GB/s": lambda: moved / _slope(READ.bind(given), launches, rounds),
        "write GB/s": lambda: moved / _slope(WRITE.bind(given), launches, rounds)}


def _steps(rounds: int, launches: int) -> dict[str, Callable[[], float]]:
    left, right = cupy.ones((64, 256), dtype="float32"), cupy.ones((256, 1024), dtype="float32")
    product = cupy.empty((64, 1024), dtype="float32")

    nothing = NOTHING.bind({"count": 1})

    def matmul() -> None:
        cupy.matmul(left, right, out=product)

    def in_graph() -> float:
        """The seconds of one launch in a graph of many launches."""
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            nothing()  # compiled before the capture
            stream.begin_capture()
            for _ in range(launches):
                nothing()
            graph = stream.end_capture()
            return _slope(lambda: graph.launch(stream), 1, rounds) / launches

    return {"launch of our kernel, us": lambda: 1e6 * _slope(nothing, launches, rounds),
            "the same in a graph, us": lambda: 1e6 * in_graph(),
            "product 64 x 256 x 1024, us": lambda: 1e6 * _slope(matmul, launches, rounds)}


def _exchanges(rounds: int) -> dict[str, Callable[[], float]]:
    blocks = min(EXCHANGING, launch.multiprocessors())

    def us(exchange: Launch, grid: int, slots: int) -> float:
        return 1e6 * _per_round(lambda signals, n: exchange["cupy"](signals, n, grid), slots, rounds)

    return {f"exchange of {blocks} blocks by a counter, us": lambda: us(BY_COUNTER, blocks, 1),
            f"exchange of {blocks} blocks by flags, us": lambda: us(BY_FLAGS, blocks, blocks),
            f"exchange in a cluster of {_CLUSTER}, us": lambda: us(IN_CLUSTER, _CLUSTER, _CLUSTER),
            f"push and wait in a cluster of {_CLUSTER}, us": lambda: us(TOLD_IN_CLUSTER, _CLUSTER, _CLUSTER)}


def _pushes(rounds: int) -> dict[str, Callable[[], float]]:
    def rate(macros: dict[str, int]) -> float:
        """GB/s out of one block."""
        blocks, threads = macros["CLUSTER"], macros["THREADS"]
        return blocks * threads * 4 / 1e9 / _per_round(PUSH[macros["WIDTH"]]["cupy"], blocks, rounds)

    return {f"pushed to {m['CLUSTER']} blocks by {m['WIDTH']} bytes, GB/s a block": partial(rate, m) for m in PUSHES}


def _per_round(run: Callable[[Any, int], None], slots: int, rounds: int) -> float:
    """The seconds of one exchange, from the slope over exchanges within a launch."""
    def seconds(count: int) -> float:
        signals = cupy.zeros(slots, dtype="uint32")
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()
        started = time.perf_counter()
        run(signals, count)
        stream.synchronize()
        ended = time.perf_counter()
        if int(signals.min()) < count:
            raise RuntimeError("blocks do not hear each other, or the device has no clusters")
        return ended - started

    seconds(_ROUNDS)
    return statistics.median(max(seconds(2 * _ROUNDS) - seconds(_ROUNDS), 1e-12) / _ROUNDS for _ in range(rounds))


def _slope(run: Callable[[], None], launches: int, rounds: int) -> float:
    """The seconds of one launch."""
    def seconds(count: int) -> float:
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()
        started = time.perf_counter()
        for _ in range(count):
            run()
        stream.synchronize()
        return time.perf_counter() - started

    seconds(launches)
    return statistics.median(max(seconds(2 * launches) - seconds(launches), 1e-12) / launches for _ in range(rounds))
