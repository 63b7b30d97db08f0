"""The peer of `duoln bench eager`: the same calls in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from duoln.bench.operators_torch import facts
from duoln.bench.records import Work

Layers = Sequence[tuple[np.ndarray, np.ndarray]]


def work(subject: str, device: str, arrays: Mapping[str, np.ndarray], layers: Layers, calls: int) -> Work:
    """A run of so many calls of a subject on "cpu" or "cuda"; `layers` has the network's weights and biases."""
    import torch

    t = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
    call = _call(torch, subject, t) or _network(torch, t, layers, device)

    def run(k: int) -> None:
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    return Work(run, [float(np.square(call().detach().cpu().numpy().astype(np.float64)).sum())], facts(device), 0, 3)


def _call(torch: Any, subject: str, t: dict[str, Any]) -> Callable[[], Any] | None:
    x, y, weight, gain, bias = (t[name] for name in ("x", "y", "weight", "gain", "bias"))
    transposed = weight.T.contiguous()
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y, "sum": x.sum, "matmul": lambda: x @ weight, "tanh": lambda: torch.tanh(x),
        "layer norm": lambda: torch.nn.functional.layer_norm(x, gain.shape, gain, bias),
        "softmax": lambda: torch.softmax(x, -1), "linear": lambda: torch.nn.functional.linear(x, transposed, bias)}
    return calls.get(subject)


def _network(torch: Any, t: dict[str, Any], layers: Layers, device: str) -> Callable[[], Any]:
    linear: list[Any] = []
    for weight, bias in layers:
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
