"""The cost and the gain of compiling a whole training step: graph, first call, and compiled against eager steps.

    python -m duoln.bench.compiling --backend mlx --steps 24 --steps 64 --steps 250

prints one JSON object: the MNIST step of its `ln` variant, then an LN-LSTM layer over sequences of growing length.
Where the backend traces no step, a compiled one runs its rules alone from the third call on (`core/replay.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln import nn, ops, optim, runtime, tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor, compile, value_and_grad
from duoln.data import strictjson
from duoln.randomness import Stream
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.training.train_step import make_step, start_state

_BATCH, _INPUTS, _HIDDEN = 4, 8, 32
_RUNS = 5


def measure(train_step: Callable[..., Any], arguments: Sequence[Any], backend: Backend) -> dict[str, Any]:
    """Figures of one training step; each time is the shortest of a few."""
    graph_size = getattr(backend, "graph_size", None)
    nodes = graph_size(_natives(train_step(*arguments))) if graph_size else None
    compiled = compile(train_step)
    first = _seconds(compiled, arguments, backend)
    eager, fast = [], []
    for _ in range(_RUNS):  # in turns, so that other work on the machine slows both
        eager.append(_seconds(train_step, arguments, backend))
        fast.append(_seconds(compiled, arguments, backend))
    return {"graph nodes": nodes, "first call s": round(first, 3), "eager ms": round(1e3 * min(eager), 2),
            "compiled ms": round(1e3 * min(fast), 2), "compiled / eager": round(min(fast) / min(eager), 3)}


def _natives(result: Any) -> list[Any]:
    return [t.data for t in tree.leaves(result)]


def _seconds(train_step: Callable[..., Any], arguments: Sequence[Any], backend: Backend) -> float:
    started = time.perf_counter()
    backend.wait(_natives(train_step(*arguments)))
    return time.perf_counter() - started


def _mnist(backend: Backend) -> tuple[Callable[..., Any], list[Any]]:
    task = find_task("mnist")
    cfg = make_config(task, "ln", "smoke", {"hidden": 256})
    model, optimizer, splits = task.model(cfg), task.optimizer(cfg), task.data(cfg)
    # Each call, eager or compiled, gets the same state, so a call must not overwrite it.
    kept = optim.Adam(learning_rate=cfg.learning_rate)
    return make_step(task, model, kept), [
        start_state(model, optimizer, 0, backend), runtime.to_tensors(splits.train(0), backend),
        runtime.tensor(np.float32(cfg.learning_rate), backend)]


def _lstm(steps: int, backend: Backend) -> tuple[Callable[..., Any], list[Any]]:
    model, adam = nn.LSTM(_INPUTS, _HIDDEN, norm="layer"), optim.Adam(0.01)

    def train_step(state: dict[str, Any], x: Tensor, rate: Tensor) -> tuple[Any, Tensor]:
        loss, gradient = value_and_grad(lambda p: ops.mean(ops.square(model(p, x)[0])))(state["params"])
        params, slots = adam.update(state["params"], gradient, state["slots"], rate)
        return {"params": params, "slots": slots}, loss

    params = runtime.to_tensors(model.init(Stream(0, "init")), backend)
    x = Stream(0, "compiling").gaussian((steps, _BATCH, _INPUTS)).astype(np.float32)
    return train_step, [{"params": params, "slots": adam.init(params)}, runtime.tensor(x, backend),
                  runtime.tensor(np.float32(0.01), backend)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m duoln.bench.compiling",
                                     description="Compiled training steps against eager ones.")
    parser.add_argument("--backend", choices=runtime.CHOICES)
    parser.add_argument("--steps", type=int, action="append", metavar="T", help="may be repeated (default 24, 64, 250)")
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    results: dict[str, Any] = {"backend": backend.name, "device": backend.device,
                             "mnist ln": measure(*_mnist(backend), backend)}
    for steps in args.steps or (24, 64, 250):
        results[f"LN-LSTM B {_BATCH}, H {_HIDDEN}, T {steps}"] = measure(*_lstm(steps, backend), backend)
    print(strictjson.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
