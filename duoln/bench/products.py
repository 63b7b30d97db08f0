"""Products of matrices, the compiled ones beside BLAS's, on a free machine and beside processes that keep cores busy.

    python -m duoln.bench.products --busy 0 --busy 1

prints one row a size: the median times in microseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.table import Table

from duoln.errors import KernelError
from duoln.kernels import host
from duoln.kernels.product.multiply import failure, multiply

SIZES = ((64, 64, 256), (8, 400, 1600), (32, 512, 512), (100, 256, 256), (128, 264, 1024), (128, 1000, 1000),
         (512, 1000, 1000), (8192, 264, 1024))
"""(rows, depth, columns)."""
_RUNS = 15
_MOST_SECONDS = 0.5
"""For the runs of one product; a slow one gets fewer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m duoln.bench.products",
                                     description="Compiled products beside BLAS's.")
    parser.add_argument("--busy", type=int, action="append", help="so many other processes compute; may be repeated")
    args = parser.parse_args(argv)
    if (reason := failure(1 << 30)) is not None:
        raise KernelError(f"[products] {reason}")
    table = Table(title=f"Products on {host.workers()} threads: median us, compiled / BLAS", title_justify="left")
    table.add_column("size")
    loads = args.busy or [0, 1]
    columns = []
    for busy in loads:
        table.add_column(f"{busy} busy", justify="right", no_wrap=True)
        with busy_processes(busy):
            columns.append([_row(size) for size in SIZES])
    for k, size in enumerate(SIZES):
        table.add_row(" x ".join(map(str, size)), *(column[k] for column in columns))
    Console().print(table)
    return 0


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Within this context so many other processes compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _row(size: tuple[int, int, int]) -> str:
    rows, depth, columns = size
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    out = np.empty((rows, columns), np.float32)
    compiled, blas = (_median(run) for run in (lambda: multiply(a, b, out), lambda: np.matmul(a, b, out=out)))
    return f"{compiled:,.0f} / {blas:,.0f} = {compiled / blas:.2f}"


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
