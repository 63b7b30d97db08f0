"""What this machine can do at most: how fast a copy and a large product are just now."""

from __future__ import annotations

import time

from duoln.backends.protocol import Backend
from duoln.bench import operators
from duoln.bench.subjects import STREAMING
from duoln.kernels.device_limits import cpu

_ROWS, _DEPTH, _COLUMNS = 2048, 1024, 1024
_ROUNDS = 5


def products_gflops(backend: Backend) -> float:
    """10^9 floating-point operations a second of a large product in float32, the best of some runs."""
    x, w = backend.ones((_ROWS, _DEPTH)), backend.ones((_DEPTH, _COLUMNS))
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        backend.to_numpy(backend.matmul(x, w)[:1, :1])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * _ROWS * _DEPTH * _COLUMNS / best / 1e9


def line(backend: Backend) -> str:
    """One line for people: what the machine gave just now."""
    copy = operators.measure_copy(backend)
    product = products_gflops(backend)
    return f"limits of this machine just now: {copy_words(copy['gbps'], copy['rule'], backend)}, a large product " \
           f"{product:.0f} GFLOP/s"


def copy_words(gbps: float, rule: str, backend: Backend) -> str:
    """What a copy moves, and on a CPU, where it makes a difference, by whom."""
    if rule == STREAMING:
        return f"a streaming copy, {gbps:.1f} GB/s"
    if operators.on_cpu(backend):
        return f"NumPy's copy, {gbps:.1f} GB/s (no limit: it reads what it overwrites; nothing is compiled, because " \
               f"{cpu.problem()})"
    return f"a copy, {gbps:.1f} GB/s"
