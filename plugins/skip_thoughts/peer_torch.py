"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.skip_thoughts.model import FLOOR
from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import last_states, layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    Without norms `nn.GRU`; with them a loop over time around `nn.Linear` and `nn.LayerNorm`, the input's side hoisted.
    Logits for all words, `cross_entropy`, `clip_grad_norm_` and Adam, whose rate makes up for its bias correction where
    ours has another.
    """
    import torch

    net, f = layers(torch, start), torch.nn.functional

    def loss_of(batch: dict[str, Any]) -> Any:
        x = net.embedding(batch["words"])
        code = last_states(torch, net.encoder(x, x.new_zeros(x.shape[1], cfg.hidden)), batch["mask"])
        inputs = f.pad(net.embedding(batch["given"]), (0, 0, 0, 0, 1, 0))
        states = torch.stack((net.previous(inputs[0], code), net.next(inputs[1], code)))
        states, targets = states.reshape(-1, cfg.hidden), batch["targets"].reshape(-1)
        nats = f.cross_entropy(net.output(states), targets, ignore_index=-1, reduction="none")
        return (-torch.log(torch.exp(-nats) + FLOOR) * (targets >= 0)).sum()

    return training_step(torch, net, SkipThoughtsTask().optimizer(cfg, 0), loss_of, fused)
