"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.errors import UsageError
from duoln.nn import Params
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, linear, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    if cfg.dropout:
        raise UsageError(f"[mnist] expected no dropout beside PyTorch, found {cfg.dropout}")
    model = _network(torch, cfg.norm, start)
    loss_of = torch.nn.CrossEntropyLoss()
    return training_step(torch, adam(torch, model, cfg, fused),
                         lambda batch: loss_of(model(batch["x"]), batch["label"]))


def _network(torch: Any, norm: str, start: Params) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    for name, params in start.items():
        if name.startswith("linear"):
            layer = linear(torch, **params)
        else:
            width = len(params["gain"])
            layer = nn.LayerNorm(width) if norm.startswith("layer") else nn.BatchNorm1d(width)
            layer.weight, layer.bias = parameter(torch, params["gain"]), parameter(torch, params["bias"])
        layers.append(layer)
        # A ReLU ends each hidden layer: after its norm, or after the linear map where it has none.
        is_hidden = not name.endswith("3")
        if is_hidden and (name.startswith("norm") or norm == "none"):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
