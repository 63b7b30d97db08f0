"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.mnist.task import Mnist
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    parts = []
    for name, params in start.items():
        layer = layers(torch, params)
        if name.startswith("norm") and not cfg.norm.startswith("layer"):
            norm = torch.nn.BatchNorm1d(len(params["gain"]))
            norm.weight, norm.bias = layer.weight, layer.bias
            layer = norm
        parts.append(layer)
        # A ReLU ends each hidden layer: after its norm, or after the linear map where it has none.
        if not name.endswith("3") and (name.startswith("norm") or cfg.norm == "none"):
            parts.append(torch.nn.ReLU())
    model, loss_of = torch.nn.Sequential(*parts), torch.nn.CrossEntropyLoss()
    return training_step(torch, model, Mnist().optimizer(cfg, 0), lambda b: loss_of(model(b["x"]), b["label"]), fused)
