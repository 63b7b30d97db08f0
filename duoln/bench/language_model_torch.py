"""The peers of `duoln bench language-model`: the model as a user of PyTorch writes it, and with plain `nn.LSTM`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.language_model import CHECKED, CLIP, RATE, TOKENS, WEIGHT_DECAY, Sizes, start_of, text_of
from duoln.bench.operators_torch import device_for, facts
from duoln.bench.records import Work


def prepare(asked: dict[str, Any]) -> Work:
    """The work of PyTorch's side, see `work`."""
    from duoln import runtime

    sizes, device = Sizes(*asked["sizes"]), device_for(runtime.choose(asked["backend"])[0].name)
    machine.begin_peak()
    return work(asked["subject"], asked["form"], sizes, start_of(sizes), text_of(sizes), device)


def work(subject: str, form: str, sizes: Sizes, start: Mapping[str, Any], text: np.ndarray, device: str) -> Work:
    """Updates or sampled tokens.

    Args:
        subject: "update" or "token".
        form: "cells" for the LN-LSTM, a loop over its cells whose input products of all steps are one; "bridge" for
            that of `duoln.bridge.torch`; "plain" for `nn.LSTM`.
        sizes: of the model and the text.
        start: the parameters, as duoln has them; "plain" has its own.
        text: characters (steps + 1, batch).
        device: "cpu" or "cuda".
    """
    import torch

    model = {"cells": _cells, "bridge": _bridge, "plain": _plain}[form](torch, sizes, start).to(device)
    ids = torch.tensor(text.astype(np.int64), device=device)
    run, checks = (_update if subject == "update" else _token)(torch, model, sizes, ids)
    return Work(run, checks, facts(device), len(checks), len(checks))


def _update(torch: Any, model: Any, sizes: Sizes, ids: Any) -> tuple[Callable[[int], float], list[float]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    states = model.first(sizes.batch)

    def run(k: int) -> float:
        nonlocal states
        optimizer.zero_grad()
        logits, states = model(ids[:-1], states)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        states = [tuple(state.detach() for state in layer) for layer in states]
        return float(loss)

    return run, [run(k) for k in range(CHECKED)]


def _token(torch: Any, model: Any, sizes: Sizes, ids: Any) -> tuple[Callable[[int], None], list[float]]:
    def run(k: int) -> None:
        states, last = model.first(1), ids.new_zeros((1, 1))
        with torch.no_grad():
            for _ in range(TOKENS):
                logits, states = model(last, states)
                last = torch.multinomial(torch.softmax(logits[0], dim=-1), 1)
                last.item()  # as characters are written

    states, norms = model.first(1), []
    with torch.no_grad():
        for character in ids[:CHECKED, :1]:
            logits, states = model(character[None], states)
            norms.append(float(logits.double().norm()))
    return run, norms


def _parameter(torch: Any, values: np.ndarray) -> Any:
    return torch.nn.Parameter(torch.tensor(values))


def _model(torch: Any, sizes: Sizes, start: Mapping[str, Any], layers: Any) -> Any:
    """Embedding, the layers and the output."""
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(sizes.symbols, sizes.width)
            self.table.weight = _parameter(torch, start["table"]["table"])
            self.layers = layers
            self.out = torch.nn.Linear(sizes.width, sizes.symbols)
            self.out.weight = _parameter(torch, start["out"]["weight"].T.copy())
            self.out.bias = _parameter(torch, start["out"]["bias"])

        def first(self, batch: int) -> list[tuple[Any, Any]]:
            zeros = self.table.weight.new_zeros(batch, sizes.width)
            return [(zeros, zeros)] * 2

        def forward(self, ids: Any, states: Any) -> tuple[Any, Any]:
            h, states = self.layers(self.table(ids), states)
            return self.out(h), states

    return Model()


def _cells(torch: Any, sizes: Sizes, start: Mapping[str, Any]) -> Any:
    normed, width = torch.nn.functional.layer_norm, sizes.width

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, params: Mapping[str, Any]) -> None:
            super().__init__()
            for name, values in params.items():
                setattr(self, name, _parameter(torch, values))

        def forward(self, x: Any, states: Any) -> tuple[Any, Any]:
            wide, (h, c), outputs = (4 * width,), states, []
            of_x = normed(x @ self.w_x, wide, self.gain_x, self.bias_x) + self.bias
            for of_step in of_x:
                gates = of_step + normed(h @ self.w_h, wide, self.gain_h, self.bias_h)
                i, f, g, o = gates.chunk(4, dim=-1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(normed(c, (width,), self.gain_c, self.bias_c))
                outputs.append(h)
            return torch.stack(outputs), (h, c)

    class Layers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.each = torch.nn.ModuleList(Layer(start["lstm"][f"forward{k}"]) for k in range(2))

        def forward(self, x: Any, states: Any) -> tuple[Any, Any]:
            last = []
            for layer, before in zip(self.each, states, strict=True):
                x, after = layer(x, before)
                last.append(after)
            return x, last

    return _model(torch, sizes, start, Layers())


def _plain(torch: Any, sizes: Sizes, start: Mapping[str, Any]) -> Any:
    return _model(torch, sizes, start, _of_module(torch, torch.nn.LSTM(sizes.width, sizes.width, num_layers=2)))


def _bridge(torch: Any, sizes: Sizes, start: Mapping[str, Any]) -> Any:
    from duoln.bridge.torch import LSTM

    lstm = LSTM(sizes.width, sizes.width, num_layers=2, bias="one", norm="layer")
    names = {"weight_ih_l{}": "w_x", "weight_hh_l{}": "w_h", "bias_ih_l{}": "bias",
             "layernorm_i_l{}.weight": "gain_x", "layernorm_i_l{}.bias": "bias_x", "layernorm_h_l{}.weight": "gain_h",
             "layernorm_h_l{}.bias": "bias_h", "layernorm_c_l{}.weight": "gain_c", "layernorm_c_l{}.bias": "bias_c"}
    lstm.load_state_dict({name.format(k): torch.from_numpy(start["lstm"][f"forward{k}"][own].T)
                          for k in range(2) for name, own in names.items()})
    return _model(torch, sizes, start, _of_module(torch, lstm))


def _of_module(torch: Any, lstm: Any) -> Any:
    """A module with the interface of torch.nn.LSTM, whose states are a pair for each layer."""
    class Layers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Any, states: Any) -> tuple[Any, Any]:
            h, c = (torch.stack(each) for each in zip(*states, strict=True))
            y, (h, c) = self.lstm(x, (h, c))
            return y, list(zip(h, c, strict=True))

    return Layers()
