"""Parts that the PyTorch peers of tasks share: our parameters as PyTorch's layers, and the training step.

A peer is left with its network and its loss. Every function is given the module `torch`, which only a task's
`peer_torch` imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.optim import Adam, Optimizer
from duoln.optim.clipping import ClipValue, ScaleByNorm, Shrink
from duoln.tasks.task import Peer


def training_step(torch: Any, model: Any, optimizer: Optimizer, loss_of: Callable[[dict[str, Any]], Any],
                  fused: bool = False, clip: Callable[[], object] | None = None) -> Peer:
    """A step of a model, `step(batch) -> loss`, by PyTorch's Adam, and the facts about the library. Batches go to the
    device that is PyTorch's default now; where the model makes tensors itself, it makes them beside those it was given.

    Args:
        torch: the module.
        model: has the parameters.
        optimizer: the task's, an Adam: its rates, coefficients and bound on the gradients are taken over.
        loss_of: from a batch of tensors to the loss.
        fused: PyTorch's fused Adam in the place of its default one.
        clip: bounds the gradients, where the optimizer's bound is neither of `clip_value` nor of `clip_global_norm`.
    """
    assert isinstance(optimizer, Adam)
    updates, device = count(), torch.get_default_device()
    adam = torch.optim.Adam(model.parameters(), lr=optimizer.rate_at(0), betas=(optimizer.beta1, optimizer.beta2),
                            eps=optimizer.eps, fused=fused or None)
    varies = callable(optimizer.learning_rate) or optimizer.bias_correction == "kiros2015"
    if clip is None:
        clip = _clip(torch.nn.utils, list(model.parameters()), optimizer.clip)

    def step(batch: Batch) -> float:
        loss = loss_of(_tensors(torch, batch, device))
        adam.zero_grad()
        loss.backward()
        clip()
        if varies:
            adam.param_groups[0].update(_rate(optimizer, next(updates)))
        adam.step()
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads()),
                  "device": str(device)}


def _clip(utils: Any, weights: list[Any], bound: Any) -> Callable[[], object]:
    """PyTorch's function of the same bound on the gradients."""
    if isinstance(bound, ClipValue):
        return lambda: utils.clip_grad_value_(weights, bound.limit)
    if isinstance(bound, ScaleByNorm) and isinstance(bound.scale_of, Shrink):
        limit = bound.scale_of.limit
        return lambda: utils.clip_grad_norm_(weights, limit)
    assert bound is None
    return lambda: None


def _rate(optimizer: Adam, update: int) -> dict[str, float]:
    """The rate and epsilon with which PyTorch's Adam, whose correction is the standard one, makes our update."""
    rate, t = optimizer.rate_at(update), update + 1
    if optimizer.bias_correction == "standard":
        return {"lr": rate}
    first, second = 1 - optimizer.beta1 ** t, (1 - optimizer.beta2 ** t) ** 0.5
    theirs = (1 - (1 - optimizer.beta2) ** t) ** 0.5 / (1 - (1 - optimizer.beta1) ** t)
    return {"lr": rate * theirs * first / second, "eps": optimizer.eps / second}


def _tensors(torch: Any, batch: Batch, device: Any) -> dict[str, Any]:
    """A batch as PyTorch takes it: indices are int64 there."""
    return {name: torch.from_numpy(a.astype(np.int64) if a.dtype == np.int32 else a).to(device)
            for name, a in batch.items()}


def parameter(torch: Any, values: np.ndarray) -> Any:
    """A parameter that starts as a copy of an array, on PyTorch's default device."""
    return torch.nn.Parameter(torch.from_numpy(values.copy()).to(torch.get_default_device()))


def layers(torch: Any, params: Params) -> Any:
    """A tree of our parameters as PyTorch's modules, each with the names that it has in the tree.

    What holds `w_x` is an LSTM's or a GRU's cell, `table` an embedding, `weight` or `direction` a linear layer or a
    convolution without padding, and `gain` a layer norm, or without a bias an RMS norm. Other arrays are parameters.
    """
    if "w_x" in params:
        weight = params["w_h"]["direction"] if isinstance(params["w_h"], dict) else params["w_h"]
        return (gru if weight.shape[1] == 3 * len(weight) else lstm_cell)(torch, params)
    if "table" in params:
        return torch.nn.Embedding.from_pretrained(parameter(torch, params["table"]), freeze=False)
    if "weight" in params or "direction" in params:
        return linear(torch, params.get("weight", params), params.get("bias"))
    if params.keys() <= {"gain", "bias"}:
        kind = torch.nn.LayerNorm if "bias" in params else torch.nn.RMSNorm
        return _set_weights(torch, kind(len(params["gain"]), 1e-5), params["gain"], params.get("bias"))
    module = torch.nn.Module()
    for name, value in params.items():
        setattr(module, name, layers(torch, value) if isinstance(value, dict) else parameter(torch, value))
    return module


def _set_weights(torch: Any, layer: Any, weight: np.ndarray, bias: np.ndarray | None) -> Any:
    layer.weight = parameter(torch, weight)
    if bias is not None:
        layer.bias = parameter(torch, bias)
    return layer


def linear(torch: Any, weight: np.ndarray | Params, bias: np.ndarray | None = None) -> Any:
    """A linear layer, or a convolution; our weight is (..., in, out), and PyTorch's (out, in, ...).

    Weight norm has our direction and gain in the place of a weight.
    """
    if isinstance(weight, dict):
        return torch.nn.utils.parametrizations.weight_norm(linear(torch, weight["direction"], bias))
    *size, n_in, n_out = weight.shape
    layer = (torch.nn.Conv2d(n_in, n_out, tuple(size), bias=bias is not None) if size else
             torch.nn.Linear(n_in, n_out, bias=bias is not None))
    return _set_weights(torch, layer, np.moveaxis(weight, (-1, -2), (0, 1)), bias)


def _cell_norm(torch: Any, cell: Params, side: str, part: slice = slice(None)) -> Any:
    """The layer norm of a `side` ("x", "h" or "c") of a recurrent cell, or of a part of its units.

    Of a cell that has no such norm it is the identity.
    """
    if f"gain_{side}" not in cell:
        return torch.nn.Identity()
    return layers(torch, {name: cell[f"{name}_{side}"][part] for name in ("gain", "bias")})


def lstm_cell(torch: Any, params: Params) -> Any:
    """An LSTM cell of `nn.Linear` and, where it has norms, `nn.LayerNorm` (eq. 20-22): `cell(cell.side(x), h, c)`.

    The input's side can also be computed for all time steps at once.
    """
    class Cell(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(torch, params["w_x"]), linear(torch, params["w_h"])
            self.bias = parameter(torch, params["bias"])
            self.norm_x, self.norm_h, self.norm_c = (_cell_norm(torch, params, side) for side in "xhc")

        def side(self, x: Any) -> Any:
            return self.norm_x(self.of_x(x)) + self.bias

        def forward(self, side: Any, h: Any, c: Any) -> tuple[Any, Any]:
            i, f, g, o = (side + self.norm_h(self.of_h(h))).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(self.norm_c(c)), c

    return Cell()


def walk(torch: Any, cell: Any, sides: Iterable[Any], mask: Any, h: Any) -> list[Any]:
    """The states of an LSTM cell step by step, from `h` and a cell of 0; where `mask` (T, B, 1) is not, they stay."""
    c, states = torch.zeros_like(h), []
    for side, real in zip(sides, mask, strict=True):
        new_h, new_c = cell(side, h, c)
        h, c = torch.where(real, new_h, h), torch.where(real, new_c, c)
        states.append(h)
    return states


def gru(torch: Any, params: Params) -> Any:
    """A GRU, `gru(x, h)` -> the states: `nn.GRU`, or with norms a loop over time, the input's side before it."""
    size = len(params["w_h"])
    if "gain_h" not in params:
        return _plain_gru(torch, params)

    class Normed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(torch, params["w_x"], params["bias"]), linear(torch, params["w_h"])
            self.norms = torch.nn.ModuleList([_cell_norm(torch, params, side, part) for side in "xh"
                                              for part in (slice(0, 2 * size), slice(2 * size, None))])

        def forward(self, x: Any, h: Any) -> Any:
            gates_x, new_x = self.of_x(x).split((2 * size, size), dim=-1)
            gates_x, new_x = self.norms[0](gates_x), self.norms[1](new_x)
            states = []
            for t in range(len(x)):
                gates_h, new_h = self.of_h(h).split((2 * size, size), dim=-1)
                update, reset = torch.sigmoid(gates_x[t] + self.norms[2](gates_h)).chunk(2, dim=-1)
                new = torch.tanh(new_x[t] + reset * self.norms[3](new_h))
                h = h + update * (new - h)
                states.append(h)
            return torch.stack(states)

    return Normed()


def _plain_gru(torch: Any, params: Params) -> Any:
    """PyTorch's GRU with our weights: its gates are reset, update, candidate, and its update gate is one less ours.

    It has one bias, as ours: PyTorch's second one would be trained as well.
    """
    def reset_first(a: np.ndarray) -> np.ndarray:
        z, r, n = np.split(a, 3, axis=-1)
        return np.concatenate((r, -z, n), axis=-1)

    class Plain(torch.nn.GRU):  # type: ignore[misc]
        def forward(self, x: Any, h: Any) -> Any:
            return super().forward(x, h[None])[0]

    rows = Plain(*params["w_x"].shape[:1], params["w_h"].shape[0])
    rows.weight_ih_l0 = parameter(torch, reset_first(params["w_x"]).T)
    rows.weight_hh_l0 = parameter(torch, reset_first(params["w_h"]).T)
    rows.bias_ih_l0 = parameter(torch, reset_first(params["bias"]))
    rows.bias_hh_l0 = parameter(torch, np.zeros_like(params["bias"])).requires_grad_(False)
    return rows


def last_states(torch: Any, states: Any, mask: Any) -> Any:
    """The one of states (T, B, H) at the end of each row's mask (T, B); 0 where a row has none."""
    last = (mask.sum(0) - 1).clamp(min=0)
    return states[last, torch.arange(states.shape[1], device=states.device)] * mask.any(0)[:, None]
