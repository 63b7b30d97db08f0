"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params


def build(cfg: Any, start: Params, packed: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    Without norms `nn.GRU`; with them a loop over time around `nn.Linear` and `nn.LayerNorm`, the input's side hoisted.
    Logits for all words, `cross_entropy`, `clip_grad_norm_` and Adam, whose rate makes up for its bias correction where
    ours has another.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        packed: leave padding out before the output layer; many users do not.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate)
    updates = 0

    def step(batch: Batch) -> float:
        nonlocal updates
        updates += 1
        words, given, targets = (torch.from_numpy(batch[key].astype(np.int64)) for key in ("words", "given", "targets"))
        loss = model(words, torch.from_numpy(batch["mask"]), given, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        if cfg.bias_correction == "kiros2015":
            undone = (1 - 0.9 ** updates) / sqrt(1 - 0.999 ** updates)
            ratio = undone * sqrt(1 - 0.001 ** updates) / (1 - 0.1 ** updates)
            optimizer.param_groups[0]["lr"] = cfg.learning_rate * ratio
        optimizer.step()
        return float(loss.item())

    model.packed = packed
    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn
    hidden = cfg.hidden

    def of(values: np.ndarray) -> Any:
        return nn.Parameter(torch.from_numpy(np.ascontiguousarray(values)))

    def linear(weight: np.ndarray, bias: np.ndarray | None) -> Any:
        layer = nn.Linear(*weight.shape, bias=bias is not None)
        layer.weight = of(weight.T)
        if bias is not None:
            layer.bias = of(bias)
        return layer

    def reset_first(a: np.ndarray) -> np.ndarray:
        """PyTorch's gates are reset, update, candidate; its update gate is 1 minus that of duoln."""
        z, r, n = np.split(a, 3, axis=-1)
        return np.concatenate((r, -z, n), axis=-1)

    class Plain(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.gru = nn.GRU(cfg.width, hidden)
            self.gru.weight_ih_l0 = of(reset_first(params["w_x"]).T)
            self.gru.weight_hh_l0 = of(reset_first(params["w_h"]).T)
            self.gru.bias_ih_l0 = of(reset_first(params["bias"]))
            # One bias, as in duoln: PyTorch's second one would be trained as well.
            self.gru.bias_hh_l0 = of(np.zeros_like(params["bias"])).requires_grad_(False)

        def forward(self, x: Any, h: Any) -> Any:
            return self.gru(x, h[None])[0]

    class Normed(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(params["w_x"], params.get("bias")), linear(params["w_h"], None)
            self.norms = nn.ModuleList()
            for side in "xh":
                for part in (slice(0, 2 * hidden), slice(2 * hidden, None)):
                    norm = nn.LayerNorm(len(params[f"gain_{side}"][part]), eps=cfg.eps)
                    norm.weight, norm.bias = of(params[f"gain_{side}"][part]), of(params[f"bias_{side}"][part])
                    self.norms.append(norm)

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
            self.table = nn.Embedding(cfg.words, cfg.width)
            self.table.weight = of(start["embedding"]["table"].copy())
            kind = Plain if cfg.norm == "none" else Normed
            self.encoder, self.previous, self.next = (kind(start[name]) for name in ("encoder", "previous", "next"))
            self.output = linear(start["output"]["weight"], start["output"]["bias"])

        def forward(self, words: Any, mask: Any, given: Any, targets: Any) -> Any:
            batch = words.shape[1]
            last = (mask.sum(0) - 1).clamp(min=0)
            code = self.encoder(self.table(words), torch.zeros(batch, hidden))[last, torch.arange(batch)]
            code = code * mask.any(0)[:, None]
            inputs = nn.functional.pad(self.table(given), (0, 0, 0, 0, 1, 0))
            states = torch.stack((self.previous(inputs[0], code), self.next(inputs[1], code)))
            states, targets = states.reshape(-1, hidden), targets.reshape(-1)
            if self.packed:
                states, targets = states[targets >= 0], targets[targets >= 0]
            nats = nn.functional.cross_entropy(self.output(states), targets, ignore_index=-1, reduction="none")
            if cfg.floor:
                nats = -torch.log(torch.exp(-nats) + cfg.floor)
            return (nats * (targets >= 0)).sum()

    return Network()
