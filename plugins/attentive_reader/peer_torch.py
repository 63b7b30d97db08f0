"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params


def build(cfg: Any, start: Params, fused: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    A loop over time around a cell of `nn.Linear` and `nn.LayerNorm`, the attention and the output as the equations have
    them, cross-entropy, Adam. Masks, losses and gradients are ours.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, fused=fused or None)

    def step(batch: Batch) -> float:
        given = {name: torch.from_numpy(a.astype(np.int64) if a.dtype == np.int32 else a) for name, a in batch.items()}
        nats = torch.nn.functional.cross_entropy(model(given), given["answer"], reduction="none")
        loss = (-torch.log(torch.exp(-nats) + 1e-8) if cfg.likelihood == "paper" else nats).mean()
        optimizer.zero_grad()
        loss.backward()
        _clip(torch, cfg, model)
        optimizer.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


def _clip(torch: Any, cfg: Any, model: Any) -> None:
    if cfg.clip == "norm":
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip_limit)
    elif cfg.clip == "paper":
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in model.parameters()]))
        if norm > cfg.clip_limit ** 2:
            for p in model.parameters():
                p.grad *= cfg.clip_limit / torch.sqrt(norm)


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn

    def own(values: np.ndarray) -> Any:
        return nn.Parameter(torch.from_numpy(np.ascontiguousarray(values)))

    def linear(params: Params, weight: str = "weight") -> Any:
        layer = nn.Linear(*params[weight].shape, bias="bias" in params and weight == "weight")
        layer.weight = own(params[weight].T)
        if layer.bias is not None:
            layer.bias = own(params["bias"])
        return layer

    def norm(params: Params, side: str) -> Any:
        layer = nn.LayerNorm(len(params[f"gain_{side}"]), eps=cfg.eps)
        layer.weight, layer.bias = own(params[f"gain_{side}"]), own(params[f"bias_{side}"])
        return layer

    def batch_norm(x: Any, gain: Any) -> Any:
        return nn.functional.batch_norm(x.reshape(-1, x.shape[-1]), None, None, gain, None, True, 0.0,
                                        cfg.eps).reshape(x.shape)

    class LSTM(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            cell = params["cell"]
            self.first, self.bias = own(params["first"]), own(cell["bias"])
            self.of_x, self.of_h = linear(cell, "w_x"), linear(cell, "w_h")
            if cfg.norm in ("layer", "layer-theano"):
                self.norm_x, self.norm_h, self.norm_c = (norm(cell, side) for side in "xhc")
            elif cfg.norm == "batch":
                self.gain_x, self.gain_h, self.gain_c = (own(cell[f"gain_{side}"]) for side in "xhc")
                self.bias_c = own(cell["bias_c"])

        def gates(self, x: Any, h: Any) -> Any:
            from_x, from_h = self.of_x(x), self.of_h(h)
            if cfg.norm == "batch":
                return batch_norm(from_x, self.gain_x) + batch_norm(from_h, self.gain_h) + self.bias
            if cfg.norm == "none":
                return from_x + from_h + self.bias * (2.0 if cfg.bias_twice else 1.0)
            if cfg.norm == "layer-theano":
                from_x = from_x + self.bias
            return self.norm_x(from_x) + self.norm_h(from_h) + self.bias

        def forward(self, xs: Any, mask: Any) -> tuple[Any, Any]:
            h = self.first.expand(xs.shape[1], -1)
            c = torch.zeros_like(h)
            states = []
            for x, real in zip(xs, mask[..., None], strict=True):
                f, i, o, g = self.gates(x, h).chunk(4, dim=-1)
                new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                if cfg.norm == "none":
                    c_norm = new_c
                elif cfg.norm == "batch":
                    c_norm = batch_norm(new_c, self.gain_c) + self.bias_c
                else:
                    c_norm = self.norm_c(new_c)
                h = torch.where(real, torch.sigmoid(o) * torch.tanh(c_norm), h)
                c = torch.where(real, new_c, c)
                states.append(h)
            return torch.stack(states), h

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(*start["embedding"]["table"].shape)
            self.embedding.weight = own(start["embedding"]["table"])
            self.passage, self.question = LSTM(start["passage"]), LSTM(start["question"])
            self.match, self.score = linear(start["match"]), own(start["score"])
            for name in ("of_passage", "of_question", "context", "asked", "mean"):
                setattr(self, name, linear(start[name]))
                if cfg.everywhere:
                    setattr(self, f"gain_{name}", own(start[f"gain_{name}"]))
            if cfg.tied:
                self.bias = own(start["bias"])
            else:
                self.output = linear(start["output"])

        def term(self, name: str, x: Any) -> Any:
            layer = getattr(self, name)
            if not cfg.everywhere:
                return layer(x)
            xhat = batch_norm(nn.functional.linear(x, layer.weight), getattr(self, f"gain_{name}"))
            return xhat if layer.bias is None else xhat + layer.bias

        def dropped(self, x: Any, keep: Any) -> Any:
            if keep is None:
                return x
            return x * keep / cfg.keep if cfg.dropout == "inverted" else x * keep

        def forward(self, batch: Any) -> Any:
            words = {side: self.dropped(self.embedding(batch[side]), batch.get(f"keep_{side}"))
                     for side in ("passage", "question")}
            mask = batch["passage_mask"]
            states, _ = self.passage(words["passage"], mask)
            _, asked = self.question(words["question"], batch["question_mask"])
            near = (self.match(states) * self.match(asked)).sum(-1, keepdim=True)
            seen = torch.tanh(self.term("of_passage", states) + self.term("of_question", asked) + near)
            scores = (seen @ self.score)[..., 0].masked_fill(~mask, -torch.inf)
            context = (torch.softmax(scores, dim=0)[..., None] * states).sum(0)
            real = mask[..., None].float()
            mean = (states * real).sum(0) / real.sum(0)
            joint = torch.tanh(self.term("context", context) + self.term("asked", asked) + self.term("mean", mean))
            joint = self.dropped(joint, batch.get("keep_joint"))
            return nn.functional.linear(joint, self.embedding.weight, self.bias) if cfg.tied else self.output(joint)

    return Network()
