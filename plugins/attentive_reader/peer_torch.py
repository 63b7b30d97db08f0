"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.attentive_reader.model import LIMIT
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, cell_norm, embedding, linear, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    A loop over time around a cell of `nn.Linear` and `nn.LayerNorm`, the attention and the output as the equations have
    them, cross-entropy, Adam. Masks, losses and gradients are ours.
    """
    import torch

    model = _network(torch, cfg, start)

    def loss_of(batch: dict[str, Any]) -> Any:
        nats = torch.nn.functional.cross_entropy(model(batch), batch["answer"], reduction="none")
        return (-torch.log(torch.exp(-nats) + 1e-8) if cfg.likelihood == "paper" else nats).mean()

    return training_step(torch, adam(torch, model, cfg, fused), loss_of, lambda _: _clip(torch, cfg, model))


def _clip(torch: Any, cfg: Any, model: Any) -> None:
    if cfg.clip == "norm":
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
    elif cfg.clip == "paper":
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in model.parameters()]))
        if norm > LIMIT ** 2:
            for p in model.parameters():
                p.grad *= LIMIT / torch.sqrt(norm)


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    nn = torch.nn

    def batch_norm(x: Any, gain: Any) -> Any:
        return nn.functional.batch_norm(x.reshape(-1, x.shape[-1]), None, None, gain, None, True, 0.0,
                                        1e-5).reshape(x.shape)

    class LSTM(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            cell = params["cell"]
            self.first, self.bias = parameter(torch, params["first"]), parameter(torch, cell["bias"])
            self.of_x, self.of_h = linear(torch, cell["w_x"]), linear(torch, cell["w_h"])
            if cfg.norm in ("layer", "layer-theano"):
                self.norm_x, self.norm_h, self.norm_c = (cell_norm(torch, cell, side) for side in "xhc")
            elif cfg.norm == "batch":
                self.gain_x, self.gain_h, self.gain_c = (parameter(torch, cell[f"gain_{side}"]) for side in "xhc")
                self.bias_c = parameter(torch, cell["bias_c"])

        def gates(self, x: Any, h: Any) -> Any:
            from_x, from_h = self.of_x(x), self.of_h(h)
            if cfg.norm == "batch":
                return batch_norm(from_x, self.gain_x) + batch_norm(from_h, self.gain_h) + self.bias
            if cfg.norm == "none":
                return from_x + from_h + 2.0 * self.bias
            if cfg.norm == "layer-theano":
                from_x = from_x + self.bias
            return self.norm_x(from_x) + self.norm_h(from_h) + self.bias

        def forward(self, xs: Any, mask: Any) -> tuple[Any, Any]:
            h = self.first.expand(xs.shape[1], -1)
            c = torch.zeros_like(h)
            states = []
            for x, real in zip(xs, mask[..., None], strict=True):
                i, f, g, o = self.gates(x, h).chunk(4, dim=-1)
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
            self.embedding = embedding(torch, start["embedding"]["table"])
            self.passage, self.question = LSTM(start["passage"]), LSTM(start["question"])
            self.match, self.score = linear(torch, **start["match"]), parameter(torch, start["score"])
            for name in ("of_passage", "of_question", "context", "asked", "mean"):
                setattr(self, name, linear(torch, **start[name]))
                if cfg.everywhere:
                    setattr(self, f"gain_{name}", parameter(torch, start[f"gain_{name}"]))
            if cfg.tied:
                self.bias = parameter(torch, start["bias"])
            else:
                self.output = linear(torch, **start["output"])

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
