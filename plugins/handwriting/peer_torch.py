"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.nn import Params
from duoln.plugins.handwriting.alphabet import CLASSES
from duoln.plugins.handwriting.model import ADAM_EPS, CLIP_OUTPUT, CLIP_STEPS, CLIP_WEIGHTS
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, linear, lstm_cell, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    A loop over time around cells made of `nn.Linear` and `nn.LayerNorm`, the loss with `logsumexp`, Adam. The bounds
    on gradients between steps are hooks; the loss and its gradients are ours.
    """
    import torch

    model = _network(torch, cfg, start)

    def loss_of(batch: dict[str, Any]) -> Any:
        text = batch["text"]
        real = (text >= 0)[..., None]
        characters = torch.nn.functional.one_hot(text.clamp(min=0), CLASSES).float() * real
        return (_nll(torch, model(batch["x"], characters), batch["target"]) * batch["mask"]).sum() / len(text)

    def clip(_: int) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), CLIP_WEIGHTS)

    return training_step(torch, adam(torch, model, cfg, fused, ADAM_EPS), loss_of, clip)


def _nll(torch: Any, output: Any, target: Any) -> Any:
    end, rest = output[..., 0], output[..., 1:]
    p, m1, m2, s1, s2, r = rest.chunk(6, dim=-1)
    x1, x2, bit = target[..., 0:1], target[..., 1:2], target[..., 2]
    a, b = (x1 - m1) * torch.exp(-s1), (x2 - m2) * torch.exp(-s2)
    quadratic = ((a - b) ** 2 * (1 + torch.exp(2 * r)) + (a + b) ** 2 * (1 + torch.exp(-2 * r))) / 4
    log_cosh = torch.logaddexp(r, -r) - np.log(2)
    each = torch.log_softmax(p, dim=-1) - np.log(2 * np.pi) - s1 - s2 + log_cosh - quadratic / 2
    pen = torch.nn.functional.binary_cross_entropy_with_logits(-end, bit, reduction="none")
    return pen - torch.logsumexp(each, dim=-1)


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn

    def bound(x: Any) -> Any:
        if x.requires_grad:
            x = x.view_as(x)  # a tensor of its own, so that only what this edge hands back is bounded
            x.register_hook(lambda g: g.clamp(-CLIP_STEPS, CLIP_STEPS))
        return x

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([lstm_cell(torch, start[f"layer{k}"]) for k in (1, 2, 3)])
            self.window = linear(torch, **start["window"])
            self.output = linear(torch, **start["output"])

        def forward(self, x: Any, characters: Any) -> Any:
            steps, batch, _ = x.shape
            states = [(x.new_zeros(batch, cfg.hidden), x.new_zeros(batch, cfg.hidden)) for _ in self.cells]
            kappa = x.new_zeros(batch, cfg.gaussians)
            window = characters[:, 0]
            places = torch.arange(1, characters.shape[1] + 1, dtype=x.dtype, device=x.device)
            outputs = []
            for t in range(steps):
                seen = self.cells[0].side(torch.cat((x[t], bound(window)), -1))
                states[0] = self.cells[0](seen, *map(bound, states[0]))
                alpha, beta, step = torch.exp(self.window(states[0][0])).chunk(3, dim=-1)
                kappa = kappa + cfg.window_advance * step
                distance = kappa[..., None] - places
                phi = (alpha[..., None] * torch.exp(-beta[..., None] * distance ** 2)).sum(1, keepdim=True)
                window = (phi @ characters)[:, 0]
                for k in (1, 2):
                    seen = self.cells[k].side(torch.cat((x[t], window, states[k - 1][0]), -1))
                    states[k] = self.cells[k](seen, *map(bound, states[k]))
                outputs.append(torch.cat([h for h, _ in states], -1))
            y = self.output(torch.stack(outputs))
            y.register_hook(lambda g: g.clamp(-CLIP_OUTPUT, CLIP_OUTPUT))
            return y

    return Network()
