"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.convnet.data import SHAPES
from duoln.plugins.convnet.model import SLOPE
from duoln.plugins.convnet.task import ConvNetTask
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    def norm(params: Params, side: int, channels: int) -> Any:
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

    def stage(name: str, side: int, padding: int) -> Any:
        parts = []
        for params in start[name].values():
            conv = layers(torch, params["conv"])
            conv.padding = (padding, padding)
            side += 2 * padding - conv.kernel_size[0] + 1
            normed = [norm(params["norm"], side, conv.out_channels)] if "norm" in params else []
            parts += [conv, *normed, torch.nn.LeakyReLU(SLOPE)]
        return torch.nn.Sequential(*parts)

    side = SHAPES[cfg.dataset][0]
    net = torch.nn.ModuleDict({"first": stage("first", side, 1), "second": stage("second", side // 2, 1),
                               "third": stage("third", side // 4, 0), "logits": layers(torch, start["logits"])})

    def loss_of(batch: dict[str, Any]) -> Any:
        x, first, second = (a.permute(0, 3, 1, 2).contiguous()
                            for a in (batch["x"] + batch["noise"], batch["first"], batch["second"]))
        x = torch.nn.functional.max_pool2d(net["first"](x), 2) * first
        x = torch.nn.functional.max_pool2d(net["second"](x), 2) * second
        return torch.nn.functional.cross_entropy(net["logits"](net["third"](x).mean((2, 3))), batch["label"])

    return training_step(torch, net, ConvNetTask().optimizer(cfg, 0), loss_of, fused)
