"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.order_embeddings.model import CLIP_EACH
from duoln.plugins.order_embeddings.task import OrderEmbeddings
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import last_states, layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    Without norms the sentence encoder is `nn.GRU`; with them a loop over time around `nn.Linear` and `nn.LayerNorm`,
    for PyTorch has no such layer.
    """
    import torch

    net, f = layers(torch, start), torch.nn.functional

    def placed(x: Any) -> Any:
        unit = f.normalize(x, dim=1)
        return unit.abs() if cfg.score == "order" else unit

    def loss_of(batch: dict[str, Any]) -> Any:
        x = net.words(batch["ids"])
        states = net.sentence(x, x.new_zeros(x.shape[1], cfg.joint_size))
        captions, images = placed(last_states(torch, states, batch["mask"])), placed(net.image(batch["features"]))
        if cfg.score == "order":
            errors = (captions[:, None] - images[None]).clamp(min=0).pow(2).sum(dim=2)
        else:
            errors = -captions @ images.T
        own = errors.diagonal()
        violations = (cfg.margin - errors + own[:, None]).clamp(min=0) + (cfg.margin - errors + own[None]).clamp(min=0)
        return violations.masked_fill(torch.eye(len(own), dtype=torch.bool, device=own.device), 0).sum()

    def clip() -> None:
        for name, weights in ((n, p) for n, p in net.named_parameters() if p.requires_grad):
            # The authors have arrays of their own for the two gates and for the candidate.
            apart = name.startswith("sentence.") and len(weights) == 3 * cfg.joint_size
            for part in weights.grad.split(2 * cfg.joint_size) if apart else (weights.grad,):
                part.mul_((CLIP_EACH / part.norm()).clamp(max=1.0))

    return training_step(torch, net, OrderEmbeddings().optimizer(cfg, 0), loss_of, fused, clip)
