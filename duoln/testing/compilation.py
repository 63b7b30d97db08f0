"""Every CUDA kernel with every setting, compiled side by side into CuPy's cache on the disk.

Each process has a compiler of its own, so none waits for another's locks. The processes that run later find the
machine code in the cache.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, NamedTuple

from duoln import runtime
from duoln.kernels import source
from duoln.kernels.registry import every_case
from duoln.kernels.settings import Macros, every_setting, walks


class Compiled(NamedTuple):
    """One setting that was compiled."""

    file: str
    macros: dict[str, int]
    seconds: float
    problem: str
    """The compiler's message; empty if there is none."""


def compile_one(setting: tuple[str, Macros]) -> Compiled:
    """Compile one setting, or load it from the cache."""
    from duoln.kernels.launch.cuda import Kernel

    file, macros = setting
    started = time.perf_counter()
    problem = ""
    try:
        Kernel(file, source.entries_in(file)[0]).compiled(dict(macros))
    except Exception as error:  # whatever the compiler raises is the outcome of this setting
        problem = f"{type(error).__name__}: {error}"
    return Compiled(file, dict(macros), time.perf_counter() - started, problem)


def of_this_device() -> list[tuple[str, Macros]]:
    """Every setting, and the walks of all cases that the current device takes."""
    from duoln.kernels.recurrent.cells import FUSED
    from duoln.kernels.recurrent.cuda_walk import device

    layers = dict.fromkeys((case.op, case.attrs["norm"], case.sizes[1], case.sizes[3])
                           for case in (*every_case(), *every_case(gpu=True))
                           if (case.op, case.attrs.get("norm")) in FUSED and case.stored == "float32")
    return [*every_setting(), *((walk.file, walk.macros) for walk in walks(device(), layers))]


def compile_all(workers: int, settings: Sequence[tuple[str, Macros]]) -> dict[str, Any]:
    """Compile these settings with some processes; how long it took, and what failed."""
    wanted = sorted(settings, key=_work, reverse=True)
    started = time.perf_counter()
    with ProcessPoolExecutor(min(workers, len(wanted)), mp_context=get_context("spawn")) as pool:
        running = [(setting, pool.submit(compile_one, setting)) for setting in wanted]
        done = [_result(*entry) for entry in running]
    return {"settings": len(done), "processes": min(workers, len(wanted)), "seconds": time.perf_counter() - started,
            "processor seconds": sum(c.seconds for c in done), "slowest seconds": max(c.seconds for c in done),
            "slowest": _name(max(done, key=lambda c: c.seconds)),
            "failures": [f"{_name(c)}: {c.problem}" for c in done if c.problem]}


def _result(setting: tuple[str, Macros], future: Future[Compiled]) -> Compiled:
    """The result of a process. If the compiler ended it, its setting and those that waited are failures."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        return Compiled(setting[0], dict(setting[1]), 0.0, f"{type(error).__name__}: {error}")


def _work(setting: tuple[str, Macros]) -> int:
    """The work of a setting, to sort by: more values a thread are more text after unrolling."""
    macros = setting[1]
    return macros.get("UNITS", macros.get("CHUNKS", 0)) * 4096 + macros.get("THREADS", 0)


def _name(one: Compiled) -> str:
    return " ".join([one.file, *(f"{key}={value}" for key, value in one.macros.items())])


def main() -> int:
    """Compile all of it into the cache, beside a part that has begun; what failed is told when it is compiled again."""
    runtime.backend("cupy")
    compile_all(max((os.cpu_count() or 1) - 1, 1), of_this_device())
    return 0


if __name__ == "__main__":
    sys.exit(main())
