"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.draw.task import DrawTask
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, training_step


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one."""
    import torch

    net = layers(torch, start)

    def filters(where: Any, size: int) -> tuple[Any, Any, Any]:
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

    def read(x: Any, error: Any, where: Any) -> Any:
        rows, columns, gamma = filters(where, cfg.read)
        patches = [torch.bmm(torch.bmm(rows, image), columns.transpose(1, 2)) * gamma for image in (x, error)]
        return torch.cat([p.flatten(1) for p in patches], dim=1)

    def write(patch: Any, where: Any) -> Any:
        rows, columns, gamma = filters(where, cfg.write)
        return torch.bmm(torch.bmm(rows.transpose(1, 2), patch), columns) / gamma

    def loss_of(batch: dict[str, Any]) -> Any:
        x, noise = batch["x"], batch["noise"]
        image = x.view(len(x), 28, 28)
        canvas = torch.zeros_like(image)
        h_encoder = c_encoder = h_decoder = c_decoder = x.new_zeros(len(x), cfg.hidden)
        looked, divergence = net.look(h_decoder), 0.0
        for t in range(cfg.glimpses):
            seen = read(image, image - torch.sigmoid(canvas), looked[:, :5])
            side = net.encoder.side(torch.cat([seen, h_decoder], dim=1))
            h_encoder, c_encoder = net.encoder(side, h_encoder, c_encoder)
            mean, log_sigma = net.posterior(h_encoder).chunk(2, dim=1)
            sigma = torch.exp(log_sigma)
            divergence = divergence + (0.5 * (mean ** 2 + sigma ** 2 - 1) - log_sigma).sum(1)
            h_decoder, c_decoder = net.decoder(net.decoder.side(mean + sigma * noise[t]), h_decoder, c_decoder)
            looked = net.look(h_decoder)
            canvas = canvas + write(looked[:, 10:].view(len(x), cfg.write, cfg.write), looked[:, 5:10])
        missed = torch.nn.functional.binary_cross_entropy_with_logits(canvas, image, reduction="none").sum((1, 2))
        return (missed + divergence).mean()

    return training_step(torch, net, DrawTask().optimizer(cfg, 0), loss_of, fused)
