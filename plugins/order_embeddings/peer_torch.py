"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params


def build(cfg: Any, start: Params, fused: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    Without norms the sentence encoder is `nn.GRU` over packed sequences; with them a loop over time around a cell of
    `nn.Linear` and `nn.LayerNorm`, for PyTorch has no such layer.
    PyTorch's Adam corrects its moments as they should be: for "kiros2015" its rate and epsilon change with the step.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, fused=fused or None)
    done = [0]

    def step(batch: Batch) -> float:
        ids, mask = torch.from_numpy(batch["ids"].astype(np.int64)), torch.from_numpy(batch["mask"])
        captions, images = model(ids, mask, torch.from_numpy(batch["features"]))
        loss = _loss(torch, cfg, captions, images)
        optimizer.zero_grad()
        loss.backward()
        done[0] += 1
        if cfg.bias_correction == "kiros2015":
            for group in optimizer.param_groups:
                group["lr"], group["eps"] = _kiros2015(cfg.learning_rate, done[0])
        if cfg.clip_each:
            for name, parameter in model.named_parameters():
                # The authors have arrays of their own for the two gates and for the candidate.
                apart = name.startswith("sentence.") and len(parameter) == 3 * cfg.joint_size
                for part in parameter.grad.split(2 * cfg.joint_size) if apart else (parameter.grad,):
                    part.mul_((cfg.clip_each / part.norm()).clamp(max=1.0))
        optimizer.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


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

    def put(parameter: Any, values: np.ndarray) -> None:
        parameter.data = torch.from_numpy(np.ascontiguousarray(values))

    def linear(weight: np.ndarray, bias: np.ndarray | None) -> Any:
        layer = nn.Linear(*weight.shape, bias=bias is not None)
        put(layer.weight, weight.T)
        if bias is not None:
            put(layer.bias, bias)
        return layer

    def norm(side: str, part: slice) -> Any:
        layer = nn.LayerNorm(len(cell[f"gain_{side}"][part]), eps=cfg.eps)
        put(layer.weight, cell[f"gain_{side}"][part])
        put(layer.bias, cell[f"bias_{side}"][part])
        return layer

    class NormedGRU(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(cell["w_x"], cell.get("bias")), linear(cell["w_h"], None)
            gates, new = slice(0, 2 * size), slice(2 * size, None)
            self.x_gates, self.h_gates, self.x_new, self.h_new = (
                norm(side, part) for part in (gates, new) for side in "xh")

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
            self.gru = nn.GRU(cfg.word_size, size)
            # PyTorch's gates are reset, update, new, and its update gate keeps the state.
            update, reset, new = (slice(k * size, (k + 1) * size) for k in range(3))
            for name, values in (("weight_ih_l0", cell["w_x"].T), ("weight_hh_l0", cell["w_h"].T),
                                 ("bias_ih_l0", cell["bias"]), ("bias_hh_l0", np.zeros_like(cell["bias"]))):
                put(getattr(self.gru, name), np.concatenate((values[reset], -values[update], values[new])))
            del self.gru.bias_hh_l0  # a second bias, which the authors' cell has not
            self.gru.register_buffer("bias_hh_l0", torch.zeros(3 * size))

        def forward(self, x: Any, mask: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(dim=0), enforce_sorted=False)
            return self.gru(packed)[1][0]

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(*start["words"]["table"].shape)
            put(self.words.weight, start["words"]["table"])
            self.image = linear(start["image"]["weight"], start["image"]["bias"])
            self.sentence = PlainGRU() if cfg.norm == "none" else NormedGRU()

        def forward(self, ids: Any, mask: Any, features: Any) -> tuple[Any, Any]:
            captions = nn.functional.normalize(self.sentence(self.words(ids), mask), dim=1)
            images = nn.functional.normalize(self.image(features), dim=1)
            return (captions.abs(), images.abs()) if cfg.score == "order" else (captions, images)

    return Network()
