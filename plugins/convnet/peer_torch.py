"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.plugins.convnet.data import SHAPES
from duoln.plugins.convnet.model import SLOPE
from duoln.plugins.convnet.schedule import linear_decay


def build(cfg: Any, start: Params, fused: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, fused=fused or None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, linear_decay(1.0, cfg.decay_from, cfg.decay_to))
    loss_of = torch.nn.CrossEntropyLoss()

    def images(values: np.ndarray) -> Any:
        return torch.from_numpy(values).permute(0, 3, 1, 2).contiguous()

    def step(batch: Batch) -> float:
        logits = model(images(batch["x"] + batch["noise"]), images(batch["first"]), images(batch["second"]))
        loss = loss_of(logits, torch.from_numpy(batch["label"].astype(np.int64)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


def _layer(torch: Any, params: Params, padding: int = 0) -> Any:
    """A convolution or, from a matrix, a linear layer, with our weight or with our direction and gain of it."""
    ours = params["direction"] if "direction" in params else params["weight"]
    weight = torch.from_numpy(np.moveaxis(ours, (-1, -2), (0, 1)).copy())
    bias = "bias" in params
    layer = (torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias) if weight.ndim == 2 else
             torch.nn.Conv2d(weight.shape[1], weight.shape[0], tuple(weight.shape[2:]), padding=padding, bias=bias))
    layer.weight.data = weight
    if bias:
        layer.bias.data = torch.from_numpy(params["bias"].copy())
    return torch.nn.utils.parametrizations.weight_norm(layer) if "direction" in params else layer


def _norm(torch: Any, cfg: Any, params: Params, side: int, channels: int) -> Any:
    if cfg.norm == "batch":
        layer = torch.nn.BatchNorm2d(channels)
    elif cfg.gains == "channel":
        layer = torch.nn.GroupNorm(1, channels)  # one group of all channels
    else:
        layer = torch.nn.LayerNorm((channels, side, side))
    for ours, theirs in (("gain", layer.weight), ("bias", layer.bias)):
        values = params[ours]
        if theirs.ndim == 3:
            values = values.reshape(side, side, channels).transpose(2, 0, 1)
        theirs.data = torch.from_numpy(values.copy())
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
