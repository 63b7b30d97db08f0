"""What the device can do at best: bandwidth of copies, reads and writes, the cost of a launch and of one step.

    python -m duoln.kernels.bandwidth.cuda        one JSON object on stdout
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import cupy
from duoln.kernels import launch

MIB = 256
"""Size of each buffer: more than any L2 cache."""
_THREADS = 256
_copy = launch.Kernel("bandwidth/bandwidth.cu", "device_copy", "x: float32[1], y: float32[1], count: int32")
_write = launch.Kernel("bandwidth/bandwidth.cu", "device_write", "y: float32[1], count: int32")
_read = launch.Kernel("bandwidth/bandwidth.cu", "device_read", "x: float32[1], never: float32[1], count: int32")
_nothing = launch.Kernel("bandwidth/bandwidth.cu", "device_nothing", "count: int32")


def measure(mib: int = MIB, rounds: int = 9, launches: int = 200) -> dict[str, float]:
    """Figures by name, the unit in the name: medians over `rounds`, from the slope over k and 2 k launches."""
    count = mib << 16  # of 16 bytes
    x, y = cupy.ones(4 * count, dtype="float32"), cupy.empty(4 * count, dtype="float32")
    blocks = (launch.multiprocessors() * 16,)
    step = cupy.ones((64, 256), dtype="float32"), cupy.ones((256, 1024), dtype="float32")
    product = cupy.empty((64, 1024), dtype="float32")

    def matmul() -> None:
        cupy.matmul(*step, out=product)

    few = max(launches // 20, 1)
    bandwidth = 16 * count / 1e9
    return {
        "copy GB/s": 2 * bandwidth / _slope(lambda: _copy(blocks, (_THREADS,), (x, y, count)), few, rounds),
        "read GB/s": bandwidth / _slope(lambda: _read(blocks, (_THREADS,), (x, y, count)), few, rounds),
        "write GB/s": bandwidth / _slope(lambda: _write(blocks, (_THREADS,), (y, count)), few, rounds),
        "launch of our kernel, us": 1e6 * _slope(lambda: _nothing((1,), (32,), (1,)), launches, rounds),
        "product 64 x 256 x 1024, us": 1e6 * _slope(matmul, launches, rounds),
        "multiprocessors": launch.multiprocessors(),
    }


def _slope(run: Callable[[], None], launches: int, rounds: int) -> float:
    """Seconds a launch."""
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


if __name__ == "__main__":
    print(json.dumps(measure()))
