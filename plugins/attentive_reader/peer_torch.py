"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.errors import UsageError
from duoln.nn import Params
from duoln.plugins.attentive_reader.model import LIMIT
from duoln.plugins.attentive_reader.task import AttentiveReader
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, training_step, walk


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    A loop over time around a cell of `nn.Linear` and `nn.LayerNorm`, the attention and the output as the equations have
    them, cross-entropy, Adam. Masks, losses and gradients are ours.

    Raises:
        UsageError: a variant with batch norm.
    """
    import torch

    if cfg.norm == "batch":
        raise UsageError("[attentive_reader] expected layer norm or none beside PyTorch, found batch norm")
    net, f = layers(torch, start), torch.nn.functional

    def dropped(x: Any, keep: Any) -> Any:
        if keep is None:
            return x
        return x * keep / cfg.keep if cfg.dropout == "inverted" else x * keep

    def read(batch: dict[str, Any], side: str) -> list[Any]:
        lstm, xs = getattr(net, side), dropped(net.embedding(batch[side]), batch.get(f"keep_{side}"))
        cell = lstm.cell  # it adds its bias twice, inside the input's norm and again outside
        sides = (cell.norm_x(cell.of_x(x) + cell.bias) + cell.bias for x in xs)
        return walk(torch, cell, sides, batch[f"{side}_mask"][..., None], lstm.first.expand(xs.shape[1], -1))

    def scores_of(batch: dict[str, Any]) -> Any:
        states, asked = torch.stack(read(batch, "passage")), read(batch, "question")[-1]
        mask = batch["passage_mask"]
        near = (net.match(states) * net.match(asked)).sum(-1, keepdim=True)
        seen = torch.tanh(net.of_passage(states) + net.of_question(asked) + near)
        scores = (seen @ net.score)[..., 0].masked_fill(~mask, -torch.inf)
        context = (torch.softmax(scores, dim=0)[..., None] * states).sum(0)
        real = mask[..., None].float()
        mean = (states * real).sum(0) / real.sum(0)
        joint = dropped(torch.tanh(net.context(context) + net.asked(asked) + net.mean(mean)), batch.get("keep_joint"))
        return f.linear(joint, net.embedding.weight, net.bias) if cfg.tied else net.output(joint)

    def loss_of(batch: dict[str, Any]) -> Any:
        nats = f.cross_entropy(scores_of(batch), batch["answer"], reduction="none")
        return (-torch.log(torch.exp(-nats) + 1e-8) if cfg.likelihood == "paper" else nats).mean()

    def clip_as_published() -> None:
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in net.parameters()]))
        if norm > LIMIT ** 2:
            for p in net.parameters():
                p.grad *= LIMIT / torch.sqrt(norm)

    return training_step(torch, net, AttentiveReader().optimizer(cfg, 0), loss_of, fused,
                         clip_as_published if cfg.clip == "paper" else None)
