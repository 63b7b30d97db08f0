"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from math import sqrt
from typing import Any

from duoln.nn import Params
from duoln.plugins.skip_thoughts.model import FLOOR, LARGEST_NORM
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, cell_norm, embedding, linear, plain_gru, training_step


def build(cfg: Any, start: Params, packed: bool = False) -> Peer:
    """See `Task.peer`; with `packed`, padding is left out before the output layer: many users do not do that.

    Without norms `nn.GRU`; with them a loop over time around `nn.Linear` and `nn.LayerNorm`, the input's side hoisted.
    Logits for all words, `cross_entropy`, `clip_grad_norm_` and Adam, whose rate makes up for its bias correction where
    ours has another.
    """
    import torch

    model = _network(torch, cfg, start)
    model.packed = packed
    optimizer = adam(torch, model, cfg)

    def loss_of(batch: dict[str, Any]) -> Any:
        return model(batch["words"], batch["mask"], batch["given"], batch["targets"])

    def clip_and_set_rate(done: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        if cfg.bias_correction == "kiros2015":
            update = done + 1
            undone = (1 - 0.9 ** update) / sqrt(1 - 0.999 ** update)
            ratio = undone * sqrt(1 - 0.001 ** update) / (1 - 0.1 ** update)
            optimizer.param_groups[0]["lr"] = cfg.learning_rate * ratio

    return training_step(torch, optimizer, loss_of, clip_and_set_rate)


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn
    hidden = cfg.hidden

    class Plain(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.gru = plain_gru(torch, params)

        def forward(self, x: Any, h: Any) -> Any:
            return self.gru(x, h[None])[0]

    class Normed(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(torch, params["w_x"], params.get("bias")), linear(torch, params["w_h"])
            gates, new = slice(0, 2 * hidden), slice(2 * hidden, None)
            self.norms = nn.ModuleList([cell_norm(torch, params, side, part)
                                        for side in "xh" for part in (gates, new)])

        def forward(self, x: Any, h: Any) -> Any:
            gates_x, new_x = self.of_x(x).split((2 * hidden, hidden), dim=-1)
            gates_x, new_x = self.norms[0](gates_x), self.norms[1](new_x)
            states = []
            for t in range(len(x)):
                gates_h, new_h = self.of_h(h).split((2 * hidden, hidden), dim=-1)
                update, reset = torch.sigmoid(gates_x[t] + self.norms[2](gates_h)).chunk(2, dim=-1)
                new = torch.tanh(new_x[t] + reset * self.norms[3](new_h))
                h = h + update * (new - h)
                states.append(h)
            return torch.stack(states)

    class Network(nn.Module):  # type: ignore[name-defined]
        packed = False

        def __init__(self) -> None:
            super().__init__()
            self.table = embedding(torch, start["embedding"]["table"])
            kind = Plain if cfg.norm == "none" else Normed
            self.encoder, self.previous, self.next = (kind(start[name]) for name in ("encoder", "previous", "next"))
            self.output = linear(torch, **start["output"])

        def forward(self, words: Any, mask: Any, given: Any, targets: Any) -> Any:
            batch = words.shape[1]
            last = (mask.sum(0) - 1).clamp(min=0)
            x = self.table(words)
            code = self.encoder(x, x.new_zeros(batch, hidden))[last, torch.arange(batch, device=x.device)]
            code = code * mask.any(0)[:, None]
            inputs = nn.functional.pad(self.table(given), (0, 0, 0, 0, 1, 0))
            states = torch.stack((self.previous(inputs[0], code), self.next(inputs[1], code)))
            states, targets = states.reshape(-1, hidden), targets.reshape(-1)
            if self.packed:
                states, targets = states[targets >= 0], targets[targets >= 0]
            nats = nn.functional.cross_entropy(self.output(states), targets, ignore_index=-1, reduction="none")
            nats = -torch.log(torch.exp(-nats) + FLOOR)
            return (nats * (targets >= 0)).sum()

    return Network()
