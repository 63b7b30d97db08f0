"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.nn import Params
from duoln.plugins.draw.model import LARGEST_NORM
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, linear, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    model = _network(torch, cfg, start)

    def clip(_: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)

    return training_step(torch, adam(torch, model, cfg, fused), lambda batch: model(batch["x"], batch["noise"]), clip)


def _linear(torch: Any, weight: np.ndarray | Params, bias: np.ndarray | None = None) -> Any:
    """A layer with our weight (in, out), or with our direction and gain of it."""
    if isinstance(weight, dict):
        return torch.nn.utils.parametrizations.weight_norm(linear(torch, weight["direction"], bias))
    return linear(torch, weight, bias)


def _cell(torch: Any, start: Params, normalised: bool) -> Any:
    class Cell(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.from_input = _linear(torch, start["w_x"], start["bias"])
            self.from_state = _linear(torch, start["w_h"])
            self.norm = torch.nn.LayerNorm(len(start["bias"]) // 4) if normalised else torch.nn.Identity()

        def forward(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
            gates = self.from_input(x) + self.from_state(h)
            i, f, g, o = gates.chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(self.norm(c)), c

    return Cell()


def _network(torch: Any, cfg: Any, start: Params) -> Any:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            normalised = cfg.norm == "layer-cell"
            self.encoder = _cell(torch, start["encoder"], normalised)
            self.decoder = _cell(torch, start["decoder"], normalised)
            self.posterior = _linear(torch, **start["posterior"])
            self.look = _linear(torch, **start["look"])

        def filters(self, where: Any, size: int) -> tuple[Any, Any, Any]:
            center_x, center_y, log_variance, log_delta, log_gamma = where.clamp(-20, 20).split(1, dim=1)
            pixels = torch.arange(28, dtype=where.dtype, device=where.device)
            steps = torch.arange(size, dtype=where.dtype, device=where.device) - size / 2 + 0.5
            stride = 27 / (size - 1) * torch.exp(log_delta)
            banks = []
            for center in (center_x, center_y):
                means = (center + 1) / 2 * 28 + stride * steps
                away = pixels - means.unsqueeze(2)
                bells = torch.exp(-away ** 2 / (2 * torch.exp(log_variance).unsqueeze(2)))
                banks.append(bells / (bells.sum(2, keepdim=True) + 1e-4))
            return banks[1], banks[0], torch.exp(log_gamma).unsqueeze(2)

        def read(self, x: Any, error: Any, where: Any) -> Any:
            rows, columns, gamma = self.filters(where, cfg.read)
            patches = [torch.bmm(torch.bmm(rows, image), columns.transpose(1, 2)) * gamma for image in (x, error)]
            return torch.cat([p.flatten(1) for p in patches], dim=1)

        def write(self, patch: Any, where: Any) -> Any:
            rows, columns, gamma = self.filters(where, cfg.write)
            return torch.bmm(torch.bmm(rows.transpose(1, 2), patch), columns) / gamma

        def forward(self, x: Any, noise: Any) -> Any:
            batch, functional = len(x), torch.nn.functional
            image = x.view(batch, 28, 28)
            canvas = torch.zeros_like(image)
            h_encoder = c_encoder = h_decoder = c_decoder = x.new_zeros(batch, cfg.hidden)
            looked = self.look(h_decoder)
            divergence = 0.0
            for t in range(cfg.glimpses):
                error = image - torch.sigmoid(canvas)
                seen = self.read(image, error, looked[:, :5])
                h_encoder, c_encoder = self.encoder(torch.cat([seen, h_decoder], dim=1), h_encoder, c_encoder)
                mean, log_sigma = self.posterior(h_encoder).chunk(2, dim=1)
                sigma = torch.exp(log_sigma)
                divergence = divergence + (0.5 * (mean ** 2 + sigma ** 2 - 1) - log_sigma).sum(1)
                h_decoder, c_decoder = self.decoder(mean + sigma * noise[t], h_decoder, c_decoder)
                looked = self.look(h_decoder)
                patch = looked[:, 10:].view(batch, cfg.write, cfg.write)
                canvas = canvas + self.write(patch, looked[:, 5:10])
            missed = functional.binary_cross_entropy_with_logits(canvas, image, reduction="none").sum((1, 2))
            return (missed + divergence).mean()

    return Network()
