"""`duoln bench eager`: single operators on small arrays, and the gradient of a small network, without `compile`.

Such calls cost what the host does for them, on a GPU too. A run makes `CALLS` of them, and `wait`s once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

import duoln
from duoln import Tensor, nn, ops
from duoln.bench import machine
from duoln.bench.records import Work
from duoln.bench.turns import KEEP_MEMORY, Entry
from duoln.randomness import Stream

PEERS = ("torch",)
CALLS = 200
ROWS, WIDTH, CLASSES = 8, 64, 10
NETWORK = "MLP, gradient"
SUBJECTS = ("add", "sum", "matmul", "tanh", "layer norm", "softmax", "linear", NETWORK)


def arrays() -> dict[str, np.ndarray]:
    """The arrays of every side."""
    stream = Stream(0, "eager")
    shapes = {"x": (ROWS, WIDTH), "y": (ROWS, WIDTH), "weight": (WIDTH, WIDTH), "gain": (WIDTH,), "bias": (WIDTH,)}
    made = {name: stream.child(name).gaussian(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "labels": stream.child("labels").integers(CLASSES, (ROWS,)).astype(np.int32)}


def layers() -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (in, out) and biases of the network: two hidden layers."""
    stream, widths = Stream(1, "eager"), (WIDTH, WIDTH, WIDTH, CLASSES)
    return [(0.1 * stream.child(str(k)).gaussian((n_in, n_out)).astype(np.float32), np.zeros(n_out, np.float32))
            for k, (n_in, n_out) in enumerate(pairwise(widths))]


def prepare(asked: dict[str, Any]) -> Work:
    """The work of one side."""
    from duoln import runtime

    backend = runtime.choose(asked["backend"])[0]
    if asked["peer"] is not None:
        import_module(asked["peer"])
        from duoln.bench import eager_torch
        from duoln.bench.operators_torch import device_for

        return eager_torch.work(asked["subject"], device_for(backend.name), arrays(), layers(), CALLS)
    t = {name: duoln.tensor(array, backend) for name, array in arrays().items()}
    call = _call(asked["subject"], t)

    def run(k: int) -> None:
        for _ in range(CALLS):
            result = call()
        backend.wait([result.data])

    return Work(run, [float(np.square(call().numpy().astype(np.float64)).sum())],
                {"backend": machine.backend_facts(backend)}, 0, 3)


def _call(subject: str, t: dict[str, Tensor]) -> Callable[[], Tensor]:
    if subject == NETWORK:
        return _network(t)
    x, y, weight, gain, bias = (t[name] for name in ("x", "y", "weight", "gain", "bias"))
    calls: dict[str, Callable[[], Tensor]] = {
        "add": lambda: x + y, "sum": lambda: ops.sum(x), "matmul": lambda: x @ weight, "tanh": lambda: ops.tanh(x),
        "layer norm": lambda: ops.layer_norm(x, gain, bias), "softmax": lambda: ops.softmax(x),
        "linear": lambda: ops.linear(x, weight, bias)}
    return calls[subject]


def _network(t: dict[str, Tensor]) -> Callable[[], Tensor]:
    params = duoln.to_tensors([{"weight": weight, "bias": bias} for weight, bias in layers()], t["x"].backend)
    widths = [nn.Linear(*weight.shape) for weight, _ in layers()]

    def loss(params: Any, x: Tensor, labels: Tensor) -> Tensor:
        for k, layer in enumerate(widths):
            x = layer(params[k], x if k == 0 else ops.relu(x))
        return ops.mean(ops.softmax_cross_entropy(x, labels))

    gradient = duoln.value_and_grad(loss)
    return lambda: gradient(params, t["x"], t["labels"])[1][0]["weight"]


def entries(subject: str, backend: str | None, peers: list[str]) -> list[Entry]:
    """The sides of a comparison."""
    asked = {"kind": "eager", "subject": subject, "backend": backend, "peer": None}
    of_peers = [Entry(peer, {**asked, "peer": peer}, KEEP_MEMORY) for peer in peers]
    return [Entry("duoln", asked), *of_peers]
