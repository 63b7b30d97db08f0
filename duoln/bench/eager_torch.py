"""The peer of `duoln bench eager`: the same calls in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.bench.eager import CALLS, NETWORK, WIDTH, arrays, layers
from duoln.bench.operators_torch import facts
from duoln.bench.records import Work


def work(subject: str, device: str) -> Work:
    """Calls of one subject on "cpu" or "cuda"."""
    import torch

    t = {name: torch.tensor(array, device=device) for name, array in arrays().items()}
    call = _network(torch, t, device) if subject == NETWORK else _call(torch, subject, t)

    def run(k: int) -> None:
        for _ in range(CALLS):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    return Work(run, [float(np.square(call().detach().cpu().numpy().astype(np.float64)).sum())], facts(device), 0, 3)


def _call(torch: Any, subject: str, t: dict[str, Any]) -> Callable[[], Any]:
    x, y, weight, gain, bias = (t[name] for name in ("x", "y", "weight", "gain", "bias"))
    transposed = weight.T.contiguous()
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y, "sum": x.sum, "matmul": lambda: x @ weight, "tanh": lambda: torch.tanh(x),
        "layer norm": lambda: torch.nn.functional.layer_norm(x, (WIDTH,), gain, bias),
        "softmax": lambda: torch.softmax(x, -1), "linear": lambda: torch.nn.functional.linear(x, transposed, bias)}
    return calls[subject]


def _network(torch: Any, t: dict[str, Any], device: str) -> Callable[[], Any]:
    linear: list[Any] = []
    for weight, bias in layers():
        layer = torch.nn.Linear(*weight.shape, device=device)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weight.T))
            layer.bias.copy_(torch.tensor(bias))
        linear += [layer, torch.nn.ReLU()]
    model, labels = torch.nn.Sequential(*linear[:-1]), t["labels"].long()

    def gradient() -> Any:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(t["x"]), labels).backward()
        return model[0].weight.grad.T

    return gradient
