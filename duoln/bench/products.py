"""Products of matrices, the compiled ones beside BLAS's, on a free machine and beside processes that multiply too.

    python -m duoln.bench.products --busy 0 --busy 1

prints one row a size: the median times in microseconds, and their ratio. It runs where the rules are compiled.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import numpy as np

from duoln import ops, runtime
from duoln.backends.protocol import Backend
from duoln.core import Rule
from duoln.errors import BackendError
from duoln.system.processes import command, environment

SIZES = ((64, 64, 256), (8, 400, 1600), (32, 512, 512), (100, 256, 256), (128, 264, 1024), (128, 1000, 1000),
         (512, 1000, 1000), (4096, 264, 1024), (800, 1600, 3), (800, 3, 1600), (30_000, 480, 1), (20_000, 24, 8))
"""(rows, depth, columns)."""
_RUNS = 15
_MOST_SECONDS = 0.5
"""For the runs of one product; a slow one gets fewer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m duoln.bench.products",
                                     description="Compiled products beside BLAS's.")
    parser.add_argument("--busy", type=int, action="append", help="beside so many other processes; may be repeated")
    parser.add_argument("--multiply-for-ever", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.multiply_for_ever:
        _multiply_for_ever()
    loads = args.busy or [0, 1]
    backend = runtime.backend("numpy")
    columns = []
    for busy in loads:
        with busy_processes(busy):
            columns.append([_row(backend, size) for size in SIZES])
    print("Median us of a product, compiled / BLAS")
    print(" ".join([f"{'rows x depth x columns':24}", *(f"{f'{busy} busy':>26}" for busy in loads)]))
    for k, size in enumerate(SIZES):
        print(" ".join([f"{' x '.join(map(str, size)):24}", *(f"{column[k]:>26}" for column in columns)]))
    return 0


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Within this context so many other processes multiply matrices, as another training does."""
    processes = [subprocess.Popen(command("duoln.bench.products", "--multiply-for-ever"), env=environment())
                 for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _multiply_for_ever() -> NoReturn:
    a = np.ones((600, 600), np.float32)
    while True:
        a @ a


def _row(backend: Backend, size: tuple[int, int, int]) -> str:
    rows, depth, columns = size
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    compiled, blas = (_median(partial(rule.forward, backend, a, b)) for rule in (_compiled(backend, a, b), _composed()))
    return f"{compiled:,.0f} / {blas:,.0f} = {compiled / blas:.2f}"


def _compiled(backend: Backend, a: np.ndarray, b: np.ndarray) -> Rule:
    rule = ops.matmul.select(backend, [a, b], {})
    if rule is _composed():
        raise BackendError("[products] expected a compiled rule for this product, found none: duoln doctor says why")
    return rule


def _composed() -> Rule:
    return ops.matmul.rules("numpy")[-1]


def _median(run: Callable[[], object]) -> float:
    run()
    samples: list[float] = []
    while len(samples) < _RUNS and sum(samples) < _MOST_SECONDS:
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return 1e6 * statistics.median(samples)


if __name__ == "__main__":
    sys.exit(main())
