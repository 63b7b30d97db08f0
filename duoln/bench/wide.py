"""`duoln bench wide`: each part that a user meets beside the same in PyTorch or JAX.

A row is a formula of arrays, said once for all libraries. A run makes its `calls`, and waits once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln import Tensor, ops
from duoln.backends.protocol import Backend
from duoln.bench import machine
from duoln.bench.records import Work
from duoln.bench.turns import KEEP_MEMORY, Entry
from duoln.errors import UsageError
from duoln.randomness import Stream

PEERS = ("torch", "torch-compile", "jax")
Call = Callable[[], Sequence[Any]]
"""Computes the results of a row."""
Formula = Callable[..., Any]
"""A function of a library's `Functions` and of the arrays."""


class Row(NamedTuple):
    """What is timed, for every library."""

    group: str
    shapes: Mapping[str, tuple[int, ...]]
    formula: Formula
    wanted: int = 0
    """The gradients of the first so many arrays are computed, too; the formula gives a number then."""
    compiled: bool = False
    """True if ours is timed by `duoln.compile`."""
    calls: int = 1


class Functions:
    """The functions of a library by duoln's names: those that are given, else of that name in one of its modules."""

    def __init__(self, *modules: Any, **given: Callable[..., Any]) -> None:
        self._modules = modules
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        function = next((getattr(module, name) for module in self._modules if hasattr(module, name)), None)
        if function is None:
            raise UsageError(f"[bench] {self._modules[0].__name__} has no {name}")
        setattr(self, name, function)
        return function


OURS = Functions(
    ops, huber_loss=lambda x, y: ops.mean(ops.huber_loss(x, y)), mse_loss=lambda x, y: ops.mean(ops.mse_loss(x, y)),
    bce_with_logits=lambda x, y: ops.mean(ops.bce_with_logits(x, y)))

_LARGE = {"x": (10_000, 1_000)}
_HALVES = {"x": (10_000, 500), "y": (10_000, 500)}
_MIDDLE = {"x": (1_000, 1_000)}
_PAIR = {"x": (1_000, 1_000), "y": (1_000, 1_000)}


def _chain(of: Any, x: Any, y: Any) -> Any:
    return of.tanh(x * y + x) * of.sigmoid(y)


ROWS = {
    **{name: Row("elementwise", _LARGE, formula) for name, formula in {
        "gelu": lambda of, x: of.gelu(x), "erf": lambda of, x: of.erf(x), "exp": lambda of, x: of.exp(x),
        "tanh": lambda of, x: of.tanh(x), "sigmoid": lambda of, x: of.sigmoid(x),
        "softmax": lambda of, x: of.softmax(x, -1), "log-softmax": lambda of, x: of.log_softmax(x, -1),
        "sum": lambda of, x: of.sum(x, -1), "max": lambda of, x: of.max(x, -1), "square": lambda of, x: of.square(x),
        "cumsum": lambda of, x: of.cumulative_sum(x, axis=-1)}.items()},
    "row-add": Row("elementwise", {**_LARGE, "y": (1_000,)}, lambda of, x, y: x + y),
    "concat": Row("elementwise", _HALVES, lambda of, x, y: of.concat([x, y], axis=-1)),
    **{f"{name}-gradient": Row("activations", _MIDDLE, formula, wanted=1) for name, formula in {
        "gelu": lambda of, x: of.mean(of.gelu(x)), "gelu-tanh": lambda of, x: of.mean(of.gelu(x, approximate="tanh")),
        "silu": lambda of, x: of.mean(of.silu(x)), "sigmoid": lambda of, x: of.mean(of.sigmoid(x)),
        "tanh": lambda of, x: of.mean(of.tanh(x)), "softmax": lambda of, x: of.mean(of.square(of.softmax(x, -1))),
        "log-softmax": lambda of, x: of.mean(of.square(of.log_softmax(x, -1)))}.items()},
    "huber": Row("losses", _PAIR, lambda of, x, y: of.huber_loss(x, y), wanted=1),
    "bce": Row("losses", _PAIR, lambda of, x, y: of.bce_with_logits(x, of.sigmoid(y)), wanted=1),
    "mse": Row("losses", _PAIR, lambda of, x, y: of.mse_loss(x, y), wanted=1),
    "softplus": Row("losses", _MIDDLE, lambda of, x: of.mean(of.softplus(x)), wanted=1),
    "chain": Row("chain", _PAIR, _chain, compiled=True),
    "chain-gradient": Row("chain", _PAIR, lambda of, x, y: of.mean(_chain(of, x, y)), wanted=2, compiled=True),
}
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS.values()))


def chosen(names: Sequence[str]) -> list[str]:
    """The rows of these names or groups, in order; all if there are none."""
    return [name for name, row in ROWS.items() if not names or name in names or row.group in names]


def arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of a row, the same on every side."""
    stream = Stream(0, "wide").child(name)
    return {key: stream.child(key).gaussian(shape).astype(np.float32) for key, shape in ROWS[name].shapes.items()}


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

    name, peer = asked["row"], asked["peer"]
    backend = runtime.choose(asked["backend"])[0]
    if peer is None:
        return work(_call(ROWS[name], arrays(name), backend), ROWS[name].calls, lambda t: t.numpy(),
                    lambda results: backend.wait([t.data for t in results]),
                    {"backend": machine.backend_facts(backend)})
    side = import_module(f"duoln.bench.wide_{peer.partition('-')[0]}")
    made: Work = side.prepare(ROWS[name], arrays(name), peer, backend.name)
    return made


def work(call: Call, calls: int, to_numpy: Callable[[Any], np.ndarray], wait: Callable[[Sequence[Any]], None],
         facts: dict[str, Any]) -> Work:
    """The work whose run makes so many calls and waits for the last one."""
    def run(k: int) -> None:
        for _ in range(calls):
            results = call()
        wait(results)

    checks = figures(to_numpy(result) for result in call())
    run(0)
    return Work(run, checks, facts, warmups=1)


def _call(row: Row, made: Mapping[str, np.ndarray], backend: Backend) -> Call:
    tensors = [duoln.tensor(array, backend) for array in made.values()]

    def function(first: list[Tensor], *others: Tensor) -> Tensor:
        result: Tensor = row.formula(OURS, *first, *others)
        return result

    if not row.wanted:
        forward = duoln.compile(function) if row.compiled else function
        return lambda: [forward(tensors)]
    gradient = duoln.value_and_grad(function)
    gradient = duoln.compile(gradient) if row.compiled else gradient

    def call() -> list[Tensor]:
        value, gradients = gradient(tensors[:row.wanted], *tensors[row.wanted:])
        return [value, *gradients]

    return call


def entries(name: str, backend: str | None, peers: Sequence[str]) -> list[Entry]:
    """The sides of a row."""
    asked = {"kind": "wide", "row": name, "backend": backend, "peer": None}
    return [Entry("duoln", asked), *(Entry(peer, {**asked, "peer": peer}, KEEP_MEMORY) for peer in peers)]


def case_of(name: str, of_side: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a case in a record, from those of `records.of_row`."""
    row = ROWS[name]
    return {"op": f"wide {name}", "passes": "forward+backward" if row.wanted else "forward",
            "shape": next(iter(row.shapes.values())), "settings": {"calls": row.calls}, **of_side}
