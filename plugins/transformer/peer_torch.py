"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from math import sqrt
from typing import Any

from duoln.nn import Params
from duoln.plugins.transformer.task import TransformerTask
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    `nn.Linear`, `nn.LayerNorm` or `nn.RMSNorm`, `scaled_dot_product_attention`, `cross_entropy` of all logits.
    """
    import torch

    net, f = layers(torch, start), torch.nn.functional

    def attend(part: Any, x: Any) -> Any:
        batch, length, width = x.shape
        heads = part.projection(x).view(batch, length, 3, cfg.heads, width // cfg.heads).permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(*heads, is_causal=True)
        return part.out(y.transpose(1, 2).reshape(batch, length, width))

    def loss_of(batch: dict[str, Any]) -> Any:
        x = batch["x"]
        h = (net.characters(x) + net.places(torch.arange(x.shape[1], device=x.device))) * sqrt(cfg.width)
        for block in net.blocks.children():
            first, second = (getattr(block, name, torch.nn.Identity()) for name in ("attention_norm", "hidden_norm"))
            if cfg.norm == "post":
                h = first(h + attend(block.attention, h))
                h = second(h + block.out(f.relu(block.hidden(h))))
            else:
                h = h + attend(block.attention, first(h))
                h = h + block.out(f.relu(block.hidden(second(h))))
        logits = net.output(net.last_norm(h) if cfg.norm == "pre" else h)
        return f.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())

    return training_step(torch, net, TransformerTask().optimizer(cfg, 0), loss_of, fused)
