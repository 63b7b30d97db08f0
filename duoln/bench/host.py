"""What our Python costs on the way to a CUDA device: for a launch, and for a time step of each recurrent rule.

    python -m duoln.bench.host

A bare launch is CuPy's own: a compiled function with arguments that are ready. A bare time step is a call of cuBLAS
with arguments that are ready and a bare launch. What the rules need beyond that is ours. Launches and products do
nothing meanwhile: the host alone is timed.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from duoln import nn, ops, runtime
from duoln.backends.protocol import Backend
from duoln.core import value_and_grad
from duoln.data import strictjson
from duoln.randomness import Stream
from duoln.runtime import to_tensors

BATCH, INPUTS, HIDDEN = 1, 2, 4
"""So small that filling the arrays of a sequence costs nothing beside the time steps."""
SHORT, LONG = 200, 2200
"""Time steps of two sequences; the slope between them has no part of what a sequence costs once."""
_RUNS = 15
_ARGUMENTS = 20
"""Of the launch of a time step; the LSTM's have 19 and 22."""

_FUNCTIONS = ("cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasGemmEx",
              "cublasGemmStridedBatchedEx")
_OF_PRODUCT = 19
"""The arguments of cublasGemmEx."""


def measure(backend: Backend) -> dict[str, dict[str, float]]:
    """Microseconds of Python for a launch and for a time step of each cell, forward and backward."""
    with _nothing_runs(backend) as function:
        bare = _bare_step(backend, function)
        rows = {"bare": {"launch us": _bare_launch(backend, function), "time step us": bare}}
        rows["layer_norm, an operator with one launch"] = {"call us": _operator(backend)}
        for cell in (nn.RNN, nn.GRU, nn.LSTM):
            forward, backward = _time_steps(backend, cell)
            rows[f"LN-{cell.__name__}"] = {
                "forward us": forward, "ours forward us": forward - bare, "forward / bare": forward / bare,
                "backward us": backward, "ours backward us": backward - bare, "backward / bare": backward / bare}
    return {name: {what: round(value, 2) for what, value in row.items()} for name, row in rows.items()}


@contextmanager
def _nothing_runs(backend: Any) -> Iterator[Callable[..., None]]:
    """Within this context, launches and products do nothing."""
    cublas = importlib.import_module("duoln.kernels.recurrent.cuda").cublas

    def launched(grid: Any, block: Any, arguments: Any, *, shared_mem: int = 0) -> None:
        pass

    def module(**settings: Any) -> Any:
        return mock.Mock(get_function=lambda name: launched)

    handle = cublas.Cublas(SimpleNamespace(**dict.fromkeys(_FUNCTIONS, _multiplied)), 0)
    with mock.patch.object(backend.xp, "RawModule", module), mock.patch.object(cublas, "handle", lambda: handle):
        yield launched


def _multiplied(*arguments: object) -> int:
    """A call of cuBLAS that does nothing."""
    return 0


def _bare_launch(backend: Any, function: Callable[..., None]) -> float:
    arguments = tuple([backend.zeros((1,)) for _ in range(_ARGUMENTS)])

    def run(count: int) -> None:
        for _ in range(count):
            function((1,), (32, 1), arguments, shared_mem=0)

    return _slope(run)


def _bare_step(backend: Any, function: Callable[..., None]) -> float:
    arguments = tuple([backend.zeros((1,)) for _ in range(_ARGUMENTS)])
    of_product = tuple(range(_OF_PRODUCT))

    def run(count: int) -> None:
        for _ in range(count):
            _multiplied(*of_product)
            function((1,), (32, 1), arguments, shared_mem=0)

    return _slope(run)


def _operator(backend: Backend) -> float:
    x = runtime.tensor(np.zeros((1, 4), np.float32), backend)

    def run(count: int) -> None:
        for _ in range(count):
            ops.layer_norm(x)

    return _slope(run)


def _time_steps(backend: Backend, cell: Callable[..., nn.Module]) -> tuple[float, float]:
    """A time step's microseconds, forward and backward."""
    model = cell(INPUTS, HIDDEN, norm="layer")
    params = to_tensors(model.init(Stream(0, "init")), backend)
    inputs = {n: runtime.tensor(np.zeros((n, BATCH, INPUTS), np.float32), backend) for n in (SHORT, LONG)}

    def forward(count: int) -> None:
        model(params, inputs[count])

    def both(count: int) -> None:
        value_and_grad(lambda p: ops.sum(model(p, inputs[count])[0]))(params)

    one_way = _slope(forward)
    return one_way, _slope(both) - one_way


def _slope(run: Callable[[int], None]) -> float:
    """Microseconds of one of the `count` repetitions of run(count), from the shortest of several runs of each count."""
    shortest = {count: min(_seconds(run, count) for _ in range(_RUNS)) for count in (SHORT, LONG)}
    return 1e6 * (shortest[LONG] - shortest[SHORT]) / (LONG - SHORT)


def _seconds(run: Callable[[int], None], count: int) -> float:
    """The processor's time: nothing here waits, and other processes do not count."""
    started = time.process_time()
    run(count)
    return time.process_time() - started


def main() -> int:
    """Measure and print."""
    print(strictjson.dumps(measure(runtime.backend("cupy")), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
