"""Parts that the PyTorch peers of tasks share: Adam, the training step, and our arrays as PyTorch's.

Every function is given the module `torch`, which only a task's `peer_torch` imports.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.tasks.task import Config, Peer


def adam(torch: Any, model: Any, cfg: Config, fused: bool = False, eps: float = 1e-8) -> Any:
    """PyTorch's default Adam, or its fused one, for all parameters of a model."""
    return torch.optim.Adam(model.parameters(), lr=cfg.learning_rate, eps=eps, fused=fused or None)


def training_step(torch: Any, optimizer: Any, loss_of: Callable[[dict[str, Any]], Any],
                  before_update: Callable[[int], object] | None = None) -> Peer:
    """A step of a model, `step(batch) -> loss`, and the facts about the library. Batches go to the device that is
    PyTorch's default now; where the model makes tensors itself, it makes them beside those it was given.

    Args:
        torch: the module.
        optimizer: updates the model's parameters.
        loss_of: from a batch of tensors to the loss.
        before_update: clips the gradients or sets the rate; it is given the number of updates that came before.
    """
    updates, device = count(), torch.get_default_device()

    def step(batch: Batch) -> float:
        loss = loss_of(_tensors(torch, batch, device))
        optimizer.zero_grad()
        loss.backward()
        if before_update is not None:
            before_update(next(updates))
        optimizer.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads()),
                  "device": str(device)}


def _tensors(torch: Any, batch: Batch, device: Any) -> dict[str, Any]:
    """A batch as PyTorch takes it: indices are int64 there."""
    return {name: torch.from_numpy(a.astype(np.int64) if a.dtype == np.int32 else a).to(device)
            for name, a in batch.items()}


def parameter(torch: Any, values: np.ndarray) -> Any:
    """A parameter that starts as a copy of an array, on PyTorch's default device."""
    return torch.nn.Parameter(torch.from_numpy(values.copy()).to(torch.get_default_device()))


def linear(torch: Any, weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
    """A linear layer; our weight is (in, out), and PyTorch's (out, in)."""
    layer = torch.nn.Linear(*weight.shape, bias=bias is not None)
    layer.weight = parameter(torch, weight.T)
    if bias is not None:
        layer.bias = parameter(torch, bias)
    return layer


def cell_norm(torch: Any, cell: Params, side: str, part: slice = slice(None)) -> Any:
    """The layer norm of a `side` ("x", "h" or "c") of a recurrent cell, or of a part of its units.

    Of a cell that has no such norm it is the identity.
    """
    if f"gain_{side}" not in cell:
        return torch.nn.Identity()
    gain = cell[f"gain_{side}"][part]
    layer = torch.nn.LayerNorm(len(gain))
    layer.weight, layer.bias = parameter(torch, gain), parameter(torch, cell[f"bias_{side}"][part])
    return layer


def lstm_cell(torch: Any, params: Params) -> Any:
    """An LSTM cell of `nn.Linear` and, where it has norms, `nn.LayerNorm` (eq. 20-22): `cell(cell.side(x), h, c)`.

    The input's side can also be computed for all time steps at once.
    """
    class Cell(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(torch, params["w_x"]), linear(torch, params["w_h"])
            self.bias = parameter(torch, params["bias"])
            self.norm_x, self.norm_h, self.norm_c = (cell_norm(torch, params, side) for side in "xhc")

        def side(self, x: Any) -> Any:
            return self.norm_x(self.of_x(x)) + self.bias

        def forward(self, side: Any, h: Any, c: Any) -> tuple[Any, Any]:
            i, f, g, o = (side + self.norm_h(self.of_h(h))).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(self.norm_c(c)), c

    return Cell()


def plain_gru(torch: Any, params: Params) -> Any:
    """PyTorch's GRU with our weights: its gates are reset, update, candidate, and its update gate is one less ours.

    It has one bias, as ours: PyTorch's second one would be trained as well.
    """
    def reset_first(a: np.ndarray) -> np.ndarray:
        z, r, n = np.split(a, 3, axis=-1)
        return np.concatenate((r, -z, n), axis=-1)

    gru = torch.nn.GRU(*params["w_x"].shape[:1], params["w_h"].shape[0])
    gru.weight_ih_l0 = parameter(torch, reset_first(params["w_x"]).T)
    gru.weight_hh_l0 = parameter(torch, reset_first(params["w_h"]).T)
    gru.bias_ih_l0 = parameter(torch, reset_first(params["bias"]))
    gru.bias_hh_l0 = parameter(torch, np.zeros_like(params["bias"])).requires_grad_(False)
    return gru


def embedding(torch: Any, table: np.ndarray) -> Any:
    """A table of vectors, which is trained."""
    return torch.nn.Embedding.from_pretrained(parameter(torch, table), freeze=False)
