"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.nn import Params
from duoln.plugins.handwriting.corpus import ALPHABET
from duoln.plugins.handwriting.model import CLIP_OUTPUT, CLIP_STEPS
from duoln.plugins.handwriting.task import Handwriting
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    A loop over time around cells made of `nn.Linear` and `nn.LayerNorm`, the loss with `logsumexp`, Adam. The bounds
    on gradients between steps are hooks; the loss and its gradients are ours.
    """
    import torch

    net = layers(torch, start)
    cells = (net.layer1, net.layer2, net.layer3)

    def bound(x: Any) -> Any:
        if x.requires_grad:
            x = x.view_as(x)  # a tensor of its own, so that only what this edge hands back is bounded
            x.register_hook(lambda g: g.clamp(-CLIP_STEPS, CLIP_STEPS))
        return x

    def outputs(x: Any, characters: Any) -> Any:
        states = [(x.new_zeros(x.shape[1], cfg.hidden),) * 2 for _ in cells]
        kappa, window = x.new_zeros(x.shape[1], cfg.gaussians), characters[:, 0]
        places = torch.arange(1, characters.shape[1] + 1, dtype=x.dtype, device=x.device)
        below = []
        for point in x:
            states[0] = cells[0](cells[0].side(torch.cat((point, bound(window)), -1)), *map(bound, states[0]))
            alpha, beta, step = torch.exp(net.window(states[0][0])).chunk(3, dim=-1)
            kappa = kappa + cfg.window_advance * step
            distance = kappa[..., None] - places
            phi = (alpha[..., None] * torch.exp(-beta[..., None] * distance ** 2)).sum(1, keepdim=True)
            window = (phi @ characters)[:, 0]
            for k in (1, 2):
                side = cells[k].side(torch.cat((point, window, states[k - 1][0]), -1))
                states[k] = cells[k](side, *map(bound, states[k]))
            below.append(torch.cat([h for h, _ in states], -1))
        y = net.output(torch.stack(below))
        y.register_hook(lambda g: g.clamp(-CLIP_OUTPUT, CLIP_OUTPUT))
        return y

    def loss_of(batch: dict[str, Any]) -> Any:
        text, target = batch["text"], batch["target"]
        characters = torch.nn.functional.one_hot(text.clamp(min=0), ALPHABET.classes).float() * (text >= 0)[..., None]
        output = outputs(batch["x"], characters)
        end, (p, m1, m2, s1, s2, r) = output[..., 0], output[..., 1:].chunk(6, dim=-1)
        a, b = (target[..., 0:1] - m1) * torch.exp(-s1), (target[..., 1:2] - m2) * torch.exp(-s2)
        quadratic = ((a - b) ** 2 * (1 + torch.exp(2 * r)) + (a + b) ** 2 * (1 + torch.exp(-2 * r))) / 4
        log_cosh = torch.logaddexp(r, -r) - np.log(2)
        each = torch.log_softmax(p, dim=-1) - np.log(2 * np.pi) - s1 - s2 + log_cosh - quadratic / 2
        pen = torch.nn.functional.binary_cross_entropy_with_logits(-end, target[..., 2], reduction="none")
        return ((pen - torch.logsumexp(each, dim=-1)) * batch["mask"]).sum() / len(text)

    return training_step(torch, net, Handwriting().optimizer(cfg, 0), loss_of, fused)
