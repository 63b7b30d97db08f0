"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.nn import Params
from duoln.plugins.convnet.data import SHAPES, schedule
from duoln.plugins.convnet.model import SLOPE
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    model = _network(torch, cfg, start)
    optimizer = adam(torch, model, cfg, fused)
    rate = schedule(cfg)
    cross_entropy = torch.nn.CrossEntropyLoss()

    def images(values: Any) -> Any:
        return values.permute(0, 3, 1, 2).contiguous()

    def loss_of(batch: dict[str, Any]) -> Any:
        logits = model(images(batch["x"] + batch["noise"]), images(batch["first"]), images(batch["second"]))
        return cross_entropy(logits, batch["label"])

    def set_rate(done: int) -> None:
        optimizer.param_groups[0]["lr"] = rate(done)

    return training_step(torch, optimizer, loss_of, set_rate)


def _layer(torch: Any, params: Params, padding: int = 0) -> Any:
    """A convolution or, from a matrix, a linear layer, with our weight or with our direction and gain of it."""
    ours = params["direction"] if "direction" in params else params["weight"]
    weight = parameter(torch, np.moveaxis(ours, (-1, -2), (0, 1)))
    bias = "bias" in params
    layer = (torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias) if weight.ndim == 2 else
             torch.nn.Conv2d(weight.shape[1], weight.shape[0], tuple(weight.shape[2:]), padding=padding, bias=bias))
    layer.weight = weight
    if bias:
        layer.bias = parameter(torch, params["bias"])
    return torch.nn.utils.parametrizations.weight_norm(layer) if "direction" in params else layer


def _norm(torch: Any, cfg: Any, params: Params, side: int, channels: int) -> Any:
    if cfg.norm == "batch":
        layer = torch.nn.BatchNorm2d(channels)
    elif cfg.gains == "channel":
        layer = torch.nn.GroupNorm(1, channels)  # one group of all channels
    else:
        layer = torch.nn.LayerNorm((channels, side, side))
    for ours, theirs in (("gain", "weight"), ("bias", "bias")):
        values = params[ours]
        if getattr(layer, theirs).ndim == 3:
            values = values.reshape(side, side, channels).transpose(2, 0, 1)
        setattr(layer, theirs, parameter(torch, values))
    return layer


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    def stage(name: str, side: int, paddings: tuple[int, int, int]) -> Any:
        layers = []
        for params, padding in zip(start[name].values(), paddings, strict=True):
            conv = _layer(torch, params["conv"], padding)
            side += 2 * padding - conv.kernel_size[0] + 1
            norm = [_norm(torch, cfg, params["norm"], side, conv.out_channels)] if "norm" in params else []
            layers += [conv, *norm, torch.nn.LeakyReLU(SLOPE)]
        return torch.nn.Sequential(*layers)

    class Network(torch.nn.Module):
        def __init__(self, side: int) -> None:
            super().__init__()
            self.first = stage("first", side, (1, 1, 1))
            self.second = stage("second", side // 2, (1, 1, 1))
            self.third = stage("third", side // 4, (0, 0, 0))
            self.logits = _layer(torch, start["logits"])

        def forward(self, x: Any, first: Any, second: Any) -> Any:
            pool = torch.nn.functional.max_pool2d
            x = pool(self.first(x), 2) * first
            x = pool(self.second(x), 2) * second
            return self.logits(self.third(x).mean((2, 3)))

    return Network(SHAPES[cfg.dataset][0])
