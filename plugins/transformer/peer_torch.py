"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from math import sqrt
from typing import Any

from duoln.nn import Params
from duoln.plugins.transformer.model import BETA2, inverse_root
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, embedding, linear, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    `nn.Linear`, `nn.LayerNorm` or `nn.RMSNorm`, `scaled_dot_product_attention`, `cross_entropy` of all logits.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = adam(torch, model, cfg, fused)
    group = optimizer.param_groups[0]
    group["betas"] = (0.9, BETA2)
    rate_at = inverse_root(cfg.learning_rate, cfg.warmup, cfg.warm)

    def loss_of(batch: dict[str, Any]) -> Any:
        logits = model(batch["x"])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())

    def set_rate(done: int) -> None:
        group["lr"] = rate_at(done)

    return training_step(torch, optimizer, loss_of, set_rate)


def _norm(torch: Any, params: Params, eps: float = 1e-5) -> Any:
    """The norm with a start's gain and, of layer norm, bias."""
    kind = torch.nn.LayerNorm if "bias" in params else torch.nn.RMSNorm
    layer = kind(len(params["gain"]), eps=eps)
    layer.weight = parameter(torch, params["gain"])
    if "bias" in params:
        layer.bias = parameter(torch, params["bias"])
    return layer


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.projection = linear(torch, **params["attention"]["projection"])
            self.joined = linear(torch, **params["attention"]["out"])
            self.hidden, self.out = linear(torch, **params["hidden"]), linear(torch, **params["out"])
            self.first, self.second = (_norm(torch, params[name]) if name in params else nn.Identity()
                                       for name in ("attention_norm", "hidden_norm"))

        def attend(self, x: Any) -> Any:
            batch, length, width = x.shape
            heads = self.projection(x).view(batch, length, 3, cfg.heads, width // cfg.heads).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            return self.joined(y.transpose(1, 2).reshape(batch, length, width))

        def transform(self, x: Any) -> Any:
            return self.out(nn.functional.relu(self.hidden(x)))

        def forward(self, x: Any) -> Any:
            if cfg.norm == "post":
                x = self.first(x + self.attend(x))
                return self.second(x + self.transform(x))
            x = x + self.attend(self.first(x))
            return x + self.transform(self.second(x))

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.characters = embedding(torch, start["characters"]["table"])
            self.places = embedding(torch, start["places"]["table"])
            self.blocks = nn.Sequential(*(Block(params) for params in start["blocks"].values()))
            self.last_norm = _norm(torch, start["last_norm"]) if "last_norm" in start else nn.Identity()
            self.output = linear(torch, **start["output"])

        def forward(self, x: Any) -> Any:
            vectors = self.characters(x) + self.places(torch.arange(x.shape[1], device=x.device))
            return self.output(self.last_norm(self.blocks(vectors * sqrt(cfg.width))))

    return Network()
