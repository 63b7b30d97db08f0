"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.plugins.mnist.model import Activation


def build(cfg: Any, start: Params, fused: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
    """
    import torch

    model = _network(torch, cfg.norm, cfg.activation, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, fused=fused or None)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(batch: Batch) -> float:
        loss = loss_of(model(torch.from_numpy(batch["x"])), torch.from_numpy(batch["label"].astype(np.int64)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


def _network(torch: Any, norm: str, activation: Activation, start: Params) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    for name, params in start.items():
        if name.startswith("linear"):
            n_in, n_out = params["weight"].shape
            layer = nn.Linear(n_in, n_out, bias="bias" in params)
            layer.weight.data = torch.from_numpy(params["weight"].T.copy())
        else:
            width = len(params["gain"])
            layer = nn.LayerNorm(width) if norm == "layer" else nn.BatchNorm1d(width)
            layer.weight.data = torch.from_numpy(params["gain"].copy())
        if "bias" in params:
            layer.bias.data = torch.from_numpy(params["bias"].copy())
        layers.append(layer)
        # An activation ends each hidden layer: after its norm, or after the linear map where it has none.
        is_hidden = not name.endswith("3")
        if is_hidden and (name.startswith("norm") or norm == "none"):
            layers.append({"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[activation]())
    return nn.Sequential(*layers)
