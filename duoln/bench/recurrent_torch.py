"""The peers of `duoln bench rnn`: the loop that a PyTorch user would write, and PyTorch's own plain LSTM and GRU.

The loop applies the cell to one time step after the other, as the layer-norm LSTM among PyTorch's own examples
does; the "hoisted" one projects and normalises all inputs before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from duoln.bench.operators_torch import compiled, facts

Built = tuple[Callable[[], None], np.ndarray, dict[str, np.ndarray], dict[str, str]]


def build(cell: str, norm: str, form: str, arrays: Mapping[str, np.ndarray], backward: bool, device: str) -> Built:
    """A function that queues a run of the peer; its output and gradients; and facts about the library.

    Args:
        cell: "lstm" or "gru".
        norm: "layer" or "none"; an LSTM's loop has "layer-per-gate" and "batch" too, and the plain GRU is
            "recurrent-bias".
        form: "loop", "hoisted", "compiled" (the loop around a time step by `torch.compile`), "plain" (PyTorch's own,
            without norms) or "bridge" (the LSTM of `duoln.bridge.torch`).
        arrays: x, h, c, w_x, w_h, bias and norms, as duoln has them.
        backward: also compute gradients of the sum of the outputs weighted by `arrays["weights"]`.
        device: "cpu" or "cuda".
    """
    import torch

    # Both libraries of a comparison compute in float32: by default cuDNN's layers would round products to TF32.
    torch.backends.cudnn.allow_tf32 = False
    if norm == "recurrent-bias":
        queue, out, gradients, described = weighted(partial(_gru, torch), arrays, backward, device)
        if backward:  # of bias_hh, whose other parts duoln has once
            gradients["bias_n"] = gradients["bias_n"][-arrays["bias_n"].size:]
        return queue, out, gradients, described
    forms = {"plain": partial(_plain, torch, cell), "bridge": partial(_bridge, norm)}
    return weighted(forms.get(form, partial(_loop, torch, cell, norm, form)), arrays, backward, device)


def weighted(make: Callable[[dict[str, Any]], Callable[[], Any]], arrays: Mapping[str, np.ndarray], backward: bool,
             device: str) -> Built:
    """The parts that `build` returns, for the function `make(tensors)`.

    The loss is the sum of its output weighted by `arrays["weights"]`.
    """
    import torch

    tensors = {k: torch.tensor(v, device=device, requires_grad=backward) for k, v in arrays.items() if k != "weights"}
    weights = torch.tensor(arrays["weights"], device=device)
    forward = make(tensors)

    def queue() -> None:
        if backward:
            for t in tensors.values():
                t.grad = None
            (forward() * weights).sum().backward()
        else:
            with torch.no_grad():
                forward()

    queue()
    gradients = {k: t.grad.cpu().numpy() for k, t in tensors.items() if t.grad is not None}
    return queue, forward().detach().cpu().numpy(), gradients, facts(device)


def _plain(torch: Any, cell: str, p: Mapping[str, Any]) -> Callable[[], Any]:
    hidden = p["w_h"].shape[0]
    layer = torch.nn.LSTM if cell == "lstm" else torch.nn.GRU
    module = layer(p["x"].shape[2], hidden, device=p["x"].device)
    states = (p["h"][None], p["c"][None]) if cell == "lstm" else p["h"][None]
    return lambda: module(p["x"], states)[0]


def _gru(torch: Any, p: dict[str, Any]) -> Callable[[], Any]:
    """nn.GRU, whose parameters take the place of these tensors. Its gates are r, z, n, and its z keeps the state."""
    n_in, hidden = p["w_x"].shape[0], p["w_h"].shape[0]
    module = torch.nn.GRU(n_in, hidden, device=p["x"].device)
    own = {"w_x": module.weight_ih_l0, "w_h": module.weight_hh_l0, "bias": module.bias_ih_l0,
           "bias_n": module.bias_hh_l0}
    with torch.no_grad():
        for name in ("w_x", "w_h", "bias"):
            z, r, n = p[name].chunk(3, dim=-1)
            own[name].copy_(torch.cat((r, -z, n), dim=-1).t())
        module.bias_hh_l0[:2 * hidden] = 0
        module.bias_hh_l0[2 * hidden:] = p["bias_n"]
    p |= own
    return lambda: module(p["x"], p["h"][None])[0]


def _bridge(norm: str, p: Mapping[str, Any]) -> Callable[[], Any]:
    """The layer of the bridge, whose weights are views of these tensors."""
    from duoln.bridge.torch import LSTM

    n_in, hidden = p["w_x"].shape[0], p["w_h"].shape[0]
    layer = LSTM(n_in, hidden, bias="one", norm=norm, device=p["x"].device)
    names = {"weight_ih_l0": p["w_x"].t(), "weight_hh_l0": p["w_h"].t(), "bias_ih_l0": p["bias"]}
    for name, value in names.items():
        del layer._parameters[name]
        setattr(layer, name, value)
    for side, of_norm in (("x", "layernorm_i_l0"), ("h", "layernorm_h_l0"), ("c", "layernorm_c_l0")):
        for kind, name in (("gain", "weight"), ("bias", "bias")):
            if f"{kind}_{side}" in p:
                module = getattr(layer, of_norm)
                del module._parameters[name]
                setattr(module, name, p[f"{kind}_{side}"])
    return lambda: layer(p["x"], (p["h"][None], p["c"][None]))[0]


def _loop(torch: Any, cell: str, norm: str, form: str, p: Mapping[str, Any]) -> Callable[[], Any]:
    layer_norm = torch.nn.functional.layer_norm
    hidden = p["w_h"].shape[0]
    cut = 2 * hidden

    def normed(a: Any, side: str, part: slice = slice(None)) -> Any:
        if norm == "none":
            return a[..., part]
        gain = p[f"gain_{side}"][part]
        if norm == "batch":
            return torch.nn.functional.batch_norm(a, None, None, gain, p.get(f"bias_{side}"), training=True)
        return layer_norm(a[..., part], gain.shape, gain, p[f"bias_{side}"][part])

    def lstm_side(x: Any) -> Any:
        if norm == "layer-per-gate":
            return x @ p["w_x"]
        return normed(x @ p["w_x"], "x") + p["bias"]

    def per_gate_step(side: Any, h: Any, c: Any) -> tuple[Any, Any]:
        gates = layer_norm((side + h @ p["w_h"]).unflatten(-1, (4, hidden)), (hidden,))
        i, f, g, o = (gates * p["gain_h"].view(4, hidden) + p["bias_h"].view(4, hidden)).unbind(-2)
        c = normed(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g), "c")
        return torch.sigmoid(o) * torch.tanh(c), c

    def lstm_step(side: Any, h: Any, c: Any) -> tuple[Any, Any]:
        i, f, g, o = (side + normed(h @ p["w_h"], "h")).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(normed(c, "c")), c

    def gru_side(x: Any) -> tuple[Any, Any]:
        a = x @ p["w_x"] + (p["bias"] if norm == "none" else 0)
        return normed(a, "x", slice(0, cut)), normed(a, "x", slice(cut, None))

    def gru_step(side: tuple[Any, Any], h: Any) -> Any:
        a = h @ p["w_h"]
        z, r = torch.sigmoid(side[0] + normed(a, "h", slice(0, cut))).chunk(2, dim=-1)
        new = torch.tanh(side[1] + r * normed(a, "h", slice(cut, None)))
        return (1 - z) * h + z * new

    make: Callable[..., Any] = lstm_side if cell == "lstm" else gru_side
    lstm: Callable[..., Any] = per_gate_step if norm == "layer-per-gate" else lstm_step
    step: Callable[..., Any] = lstm if cell == "lstm" else gru_step
    if form == "compiled":
        step = compiled(step)

    def forward() -> Any:
        x, h, c, outs = p["x"], p["h"], p.get("c"), []
        whole = None if form == "loop" else make(x)
        for t in range(x.shape[0]):
            if whole is None:
                side = make(x[t])
            else:
                side = whole[t] if cell == "lstm" else (whole[0][t], whole[1][t])
            if cell == "lstm":
                h, c = step(side, h, c)
            else:
                h = step(side, h)
            outs.append(h)
        return torch.stack(outs)

    return forward
