"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.plugins.handwriting.alphabet import CLASSES


def build(cfg: Any, start: Params, fused: bool = False) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    A loop over time around cells made of `nn.Linear` and `nn.LayerNorm`, the loss with `logsumexp`, Adam. The bounds
    on gradients between steps are hooks; the loss and its gradients are ours.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
    """
    import torch

    model = _network(torch, cfg, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, eps=cfg.adam_eps, fused=fused or None)

    def step(batch: Batch) -> float:
        x, target, mask = (torch.from_numpy(batch[name]) for name in ("x", "target", "mask"))
        text = torch.from_numpy(batch["text"].astype(np.int64))
        real = (text >= 0)[..., None]
        characters = torch.nn.functional.one_hot(text.clamp(min=0), CLASSES).float() * real
        loss = (_nll(torch, model(x, characters), target) * mask).sum() / len(text)
        optimizer.zero_grad()
        loss.backward()
        if cfg.clip_weights:
            torch.nn.utils.clip_grad_value_(model.parameters(), cfg.clip_weights)
        optimizer.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


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

    def put(parameter: Any, values: np.ndarray) -> None:
        parameter.data = torch.from_numpy(np.ascontiguousarray(values))

    def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
        layer = nn.Linear(*weight.shape, bias=bias is not None)
        put(layer.weight, weight.T)
        if bias is not None:
            put(layer.bias, bias)
        return layer

    def norm(params: Params, side: str) -> Any:
        layer = nn.LayerNorm(len(params[f"gain_{side}"]), eps=cfg.eps)
        put(layer.weight, params[f"gain_{side}"])
        put(layer.bias, params[f"bias_{side}"])
        return layer

    def bound(x: Any) -> Any:
        if cfg.clip_steps and x.requires_grad:
            x = x.view_as(x)  # a tensor of its own, so that only what this edge hands back is bounded
            x.register_hook(lambda g: g.clamp(-cfg.clip_steps, cfg.clip_steps))
        return x

    class Cell(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(params["w_x"]), linear(params["w_h"])
            self.bias = nn.Parameter(torch.from_numpy(params["bias"].copy()))
            self.normed = "gain_x" in params
            if self.normed:
                self.norm_x, self.norm_h, self.norm_c = (norm(params, side) for side in "xhc")

        def forward(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
            from_x, from_h = self.of_x(x), self.of_h(h)
            if self.normed:
                from_x, from_h = self.norm_x(from_x), self.norm_h(from_h)
            f, i, o, g = (from_x + from_h + self.bias).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            c_norm = self.norm_c(c) if self.normed else c
            return torch.sigmoid(o) * torch.tanh(c_norm), c

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([Cell(start[f"layer{k}"]) for k in (1, 2, 3)])
            self.window = linear(start["window"]["weight"], start["window"]["bias"])
            self.output = linear(start["output"]["weight"], start["output"]["bias"])

        def forward(self, x: Any, characters: Any) -> Any:
            steps, batch, _ = x.shape
            states = [(torch.zeros(batch, cfg.hidden), torch.zeros(batch, cfg.hidden)) for _ in self.cells]
            kappa = torch.zeros(batch, cfg.gaussians)
            window = characters[:, 0] if cfg.first_window == "first_character" else torch.zeros(batch, CLASSES)
            places = torch.arange(1, characters.shape[1] + 1, dtype=x.dtype)
            outputs = []
            for t in range(steps):
                states[0] = self.cells[0](torch.cat((x[t], bound(window)), -1), *map(bound, states[0]))
                alpha, beta, step = torch.exp(self.window(states[0][0])).chunk(3, dim=-1)
                kappa = kappa + cfg.window_advance * step
                distance = kappa[..., None] - places
                phi = (alpha[..., None] * torch.exp(-beta[..., None] * distance ** 2)).sum(1, keepdim=True)
                window = (phi @ characters)[:, 0]
                for k in (1, 2):
                    below = states[k - 1][0]
                    state = states[k]
                    if cfg.form == "sequences":
                        below = bound(below)
                    else:
                        state = tuple(map(bound, state))
                    states[k] = self.cells[k](torch.cat((x[t], window, below), -1), *state)
                outputs.append(torch.cat([h for h, _ in states], -1))
            y = self.output(torch.stack(outputs))
            if cfg.clip_output:
                y.register_hook(lambda g: g.clamp(-cfg.clip_output, cfg.clip_output))
            return y

    return Network()
