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


def embedding(torch: Any, table: np.ndarray) -> Any:
    """A table of vectors, which is trained."""
    return torch.nn.Embedding.from_pretrained(parameter(torch, table), freeze=False)
