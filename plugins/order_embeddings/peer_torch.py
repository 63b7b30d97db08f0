"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

import math
from typing import Any

from duoln.nn import Params
from duoln.plugins.order_embeddings.model import CLIP_EACH
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, cell_norm, embedding, linear, plain_gru, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    Without norms the sentence encoder is `nn.GRU` over packed sequences; with them a loop over time around a cell of
    `nn.Linear` and `nn.LayerNorm`, for PyTorch has no such layer.
    PyTorch's Adam corrects its moments as they should be: for "kiros2015" its rate and epsilon change with the step.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = adam(torch, model, cfg, fused)

    def loss_of(batch: dict[str, Any]) -> Any:
        return _loss(torch, cfg, *model(batch["ids"], batch["mask"], batch["features"]))

    def set_rate_and_clip(done: int) -> None:
        if cfg.bias_correction == "kiros2015":
            for group in optimizer.param_groups:
                group["lr"], group["eps"] = _kiros2015(cfg.learning_rate, done + 1)
        for name, weights in ((n, p) for n, p in model.named_parameters() if p.requires_grad):
            # The authors have arrays of their own for the two gates and for the candidate.
            apart = name.startswith("sentence.") and len(weights) == 3 * cfg.joint_size
            for part in weights.grad.split(2 * cfg.joint_size) if apart else (weights.grad,):
                part.mul_((CLIP_EACH / part.norm()).clamp(max=1.0))

    return training_step(torch, optimizer, loss_of, set_rate_and_clip)


def _kiros2015(rate: float, t: int, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
               ) -> tuple[float, float]:
    """The rate and epsilon with which Adam's update t, from 1, is that of the authors' code."""
    first, second = 1 - beta1 ** t, math.sqrt(1 - beta2 ** t)
    theirs = math.sqrt(1 - (1 - beta2) ** t) / (1 - (1 - beta1) ** t)
    return rate * theirs * first / second, eps / second


def _loss(torch: Any, cfg: Any, captions: Any, images: Any) -> Any:
    if cfg.score == "order":
        errors = (captions[:, None] - images[None]).clamp(min=0).pow(2).sum(dim=2)
    else:
        errors = -captions @ images.T
    own = errors.diagonal()
    violations = (cfg.margin - errors + own[:, None]).clamp(min=0) + (cfg.margin - errors + own[None]).clamp(min=0)
    return violations.masked_fill(torch.eye(len(violations), dtype=torch.bool), 0).sum()


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn
    size, cell = cfg.joint_size, start["sentence"]

    class NormedGRU(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(torch, cell["w_x"], cell.get("bias")), linear(torch, cell["w_h"])
            gates, new = slice(0, 2 * size), slice(2 * size, None)
            self.x_gates, self.h_gates, self.x_new, self.h_new = (
                cell_norm(torch, cell, side, part) for part in (gates, new) for side in "xh")

        def forward(self, x: Any, mask: Any) -> Any:
            h = x.new_zeros(x.shape[1], size)
            for t in range(len(x)):
                from_x, from_h = self.of_x(x[t]), self.of_h(h)
                gates = torch.sigmoid(self.x_gates(from_x[:, :2 * size]) + self.h_gates(from_h[:, :2 * size]))
                z, r = gates.chunk(2, dim=-1)
                new = torch.tanh(self.x_new(from_x[:, 2 * size:]) + r * self.h_new(from_h[:, 2 * size:]))
                h = torch.where(mask[t][:, None], (1 - z) * h + z * new, h)
            return h

    class PlainGRU(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gru = plain_gru(torch, cell)

        def forward(self, x: Any, mask: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(dim=0).cpu(), enforce_sorted=False)
            return self.gru(packed)[1][0]

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = embedding(torch, start["words"]["table"])
            self.image = linear(torch, **start["image"])
            self.sentence = PlainGRU() if cfg.norm == "none" else NormedGRU()

        def forward(self, ids: Any, mask: Any, features: Any) -> tuple[Any, Any]:
            captions = nn.functional.normalize(self.sentence(self.words(ids), mask), dim=1)
            images = nn.functional.normalize(self.image(features), dim=1)
            return (captions.abs(), images.abs()) if cfg.score == "order" else (captions, images)

    return Network()
