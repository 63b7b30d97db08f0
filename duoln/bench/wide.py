"""`duoln bench wide`: each part that a user meets beside the same in PyTorch or JAX.

A run makes the `calls` of its row, and waits once. Steps update by AdamW, and ours are compiled, as guides write them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import duoln
from duoln import Tensor, ops, optim
from duoln.backends.protocol import Backend
from duoln.bench import machine
from duoln.bench.records import Work
from duoln.bench.turns import KEEP_MEMORY, Entry
from duoln.bench.wide_rows import EVERY, FIRST, OTHERS, ROWS, Functions, Row, Sides, classes
from duoln.randomness import Stream
from duoln.system import processes

Call = Callable[[], Sequence[Any]]
"""Computes the results of a row: values, or a loss and the gradients or new parameters."""
RATE, WEIGHT_DECAY, CLIP = 1e-3, 0.01, 1.0
"""The settings of AdamW, and the largest norm of given gradients."""


def _mean(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arrays: ops.mean(loss(*arrays))


OURS = Functions(ops, attention=ops.scaled_dot_product_attention, **{
    loss.__name__: _mean(loss) for loss in (ops.huber, ops.squared_error, ops.bce_with_logits,
                                            ops.softmax_cross_entropy, ops.linear_cross_entropy)})


def chosen(names: Sequence[str]) -> list[str]:
    """The rows of these names or groups, in order; all if there are none."""
    return [name for name, row in EVERY.items() if not names or name in names or row.group in names]


def arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of a row, the same on every side."""
    row, stream = ROWS[name], Stream(0, "wide").child(name)
    made = {}
    for key, shape in row.shapes.items():
        if key == "labels":
            made[key] = stream.child(key).integers(classes(row), shape).astype(np.int32)
        elif key == "y_share":
            made[key] = stream.child(key).uniform(shape).astype(np.float32)
        else:
            scale = np.prod(shape[:-1]) ** -0.5 if key.startswith("w") else 1.0
            made[key] = (scale * stream.child(key).gaussian(shape)).astype(np.float32)
    return made


def figures(results: Iterable[np.ndarray]) -> list[float]:
    """Figures on which all sides must agree: norms of each array, of what is positive in it, and of its values
    weighted by their place, because a norm alone knows neither sign nor order.
    """
    made: list[float] = []
    for result in results:
        flat = result.ravel().astype(np.float64)
        made += [float(np.linalg.norm(part)) for part in
                 (flat, np.maximum(flat, 0.0), flat * np.linspace(0.5, 1.0, flat.size))]
    return made


def prepare(asked: dict[str, Any]) -> Work:
    """The work of one side."""
    from duoln import runtime

    name = asked["row"]
    return work_of(ROWS[name], arrays(name), asked["peer"], runtime.choose(asked["backend"])[0])


def work_of(row: Row, made: Mapping[str, np.ndarray], peer: str | None, backend: Backend) -> Work:
    """The work of a row with these arrays, ours or that of a peer beside this backend."""
    if peer is not None:
        side = import_module(f"duoln.bench.wide_{peer.partition('-')[0]}")
        theirs: Work = side.prepare(row, made, peer, backend.name)
        return theirs
    machine.begin_peak()
    compiled = duoln.compile if row.compiled else lambda function: function
    call = call_of(row, OURS, [duoln.tensor(array, backend) for array in made.values()], duoln.value_and_grad, compiled,
                   _step)
    return work(call, row.calls, lambda results: [t.numpy() for t in results],
                lambda results: backend.wait([t.data for t in results]), {"backend": machine.backend_facts(backend)})


def work(call: Call, calls: int, host: Callable[[Sequence[Any]], list[np.ndarray]],
         wait: Callable[[Sequence[Any]], Any], facts: dict[str, Any]) -> Work:
    """The work whose run makes so many calls and waits for the last one. A later call than the first is checked."""
    def run(k: int) -> None:
        for _ in range(calls):
            results = call()
        wait(results)

    run(0)
    facts = {**facts, "peak_bytes": machine.peak()}  # without the figures
    return Work(run, figures(host(call())), facts, warmups=1)


def call_of(row: Row, functions: Functions, values: list[Any], value_and_grad: Callable[..., Any],
            compiled: Callable[..., Any], step: Callable[..., Call]) -> Call:
    """A call of a row in a library whose `value_and_grad` and compiler take pure functions, as ours and JAX's do.

    `step(row, loss, params, others)` makes the call of a row that updates parameters.
    """
    params, others = values[:row.params], values[row.params:]

    def function(params: list[Any], *others: Any) -> Any:
        return row.formula(functions, *params, *others)

    if row.passes in ("step", "update"):
        return step(row, function, params, others)
    run = compiled(function if row.passes == "forward" else value_and_grad(function))

    def call() -> list[Any]:
        results = run(params, *others)
        if row.passes == "gradient":
            return [results[0], *results[1]]
        return results if isinstance(results, list) else [results]

    return call


def _step(row: Row, loss: Callable[..., Tensor], params: list[Tensor], others: list[Tensor]) -> Call:
    given = row.passes == "update"
    optimizer = optim.AdamW(RATE, weight_decay=WEIGHT_DECAY, clip=optim.clip_global_norm(CLIP) if given else None)

    @duoln.compile
    def train_step(params: list[Tensor], slots: Any, *others: Any) -> Any:
        value, gradients = (others[1], others[0]) if given else duoln.value_and_grad(loss)(params, *others)
        params, slots = optimizer.update(params, gradients, slots)
        return params, slots, value

    slots = optimizer.init(params)
    inputs = [[2.0 * param for param in params], duoln.tensor(np.float32(RATE), params[0].backend)] if given else others

    def call() -> list[Tensor]:
        nonlocal params, slots
        params, slots, value = train_step(params, slots, *inputs)
        return [value, *params]

    return call


def prepare_start(asked: dict[str, Any]) -> Work:
    """The work of one side that starts a process, which makes a first step. Ours finds no compiled kernel."""
    words = json.dumps({**asked, "kind": "wide", "row": FIRST})

    def run(k: int) -> None:
        with TemporaryDirectory() as folder:
            subprocess.run(processes.command("duoln.bench.timed_process", words), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, check=True, env=processes.environment({"DUOLN_KERNELS": folder}))

    return Work(run, [], {})


def entries(name: str, backend: str | None, peers: Sequence[str]) -> list[Entry]:
    """The sides of a row: ours, the peers that it has, and others under names of their own, which are not checked,
    because they compute something else.
    """
    others: Mapping[str, Mapping[str, Any]] = {peer: {"peer": peer} for peer in peers}
    asked: dict[str, Any] = {"kind": "wide", "row": name}
    if name in OTHERS:
        asked, others = dict(OTHERS[name].ours), OTHERS[name].others
    asked |= {"backend": backend, "peer": None}
    return [Entry("duoln", asked), *(
        Entry(side, {**asked, **more}, KEEP_MEMORY if "peer" in more else {}, checked=side in peers)
        for side, more in others.items() if more.get("peer") in (None, *peers))]


def turns(name: str, rounds: int, runs: int) -> tuple[int, int]:
    """Turns and runs of a row, of those that are asked for."""
    row = EVERY[name]
    most = row.rounds if isinstance(row, Sides) else None
    return (rounds, runs) if most is None else (min(rounds, most), 1)


def case_of(name: str, of_side: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a case in a record, from those of `records.of_row`."""
    row = EVERY[name]
    passes = {"gradient": "forward+backward", "update": "step"}.get(row.passes, row.passes)
    shape = row.shape if isinstance(row, Sides) else next(iter(row.shapes.values()))
    return {"op": f"wide {name}", "passes": passes, "shape": shape, "settings": {"calls": row.calls}, **of_side}
