"""The same training step in PyTorch, as its users write it; `duoln bench train --peer torch` times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.nn import Params
from duoln.plugins.las.alphabet import Alphabet

_GATES = (1, 0, 3, 2)
"""PyTorch's input, forget, candidate, output among our forget, input, output, candidate."""


def build(cfg: Any, start: Params, fused: bool = False, hoisted: bool = False,
          ) -> tuple[Callable[[Batch], float], dict[str, str]]:
    """A step on PyTorch's CPU with the initial weights of duoln: `step(batch) -> loss`.

    Layers without norms are `torch.nn.LSTM` over packed sequences; with norms a loop over time, as the speller is.

    Args:
        cfg: the task's configuration.
        start: the initial parameters of duoln, as NumPy arrays.
        fused: use PyTorch's fused Adam instead of its default one.
        hoisted: project and normalise a layer's inputs of all steps before its loop.
    """
    import torch

    model = _network(torch, cfg, start, hoisted)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=cfg.learning_rate, fused=fused or None)
    count = 0

    def step(batch: Batch) -> float:
        nonlocal count
        given = {name: torch.from_numpy(a.astype(np.int64) if a.dtype == np.int32 else a) for name, a in batch.items()}
        each = torch.nn.functional.cross_entropy(model(given).transpose(1, 2), given["labels"], reduction="none")
        loss = (each * given["weight"]).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(trained, cfg.clip)
        if cfg.decay_steps:
            optimizer.param_groups[0]["lr"] = cfg.learning_rate * 10 ** (-count / cfg.decay_steps)
        optimizer.step()
        count += 1
        return float(loss.item())

    return step, {"library": f"torch {torch.__version__}", "threads": str(torch.get_num_threads())}


def _network(torch: Any, cfg: Any, start: Params, hoisted: bool) -> Any:
    nn = torch.nn

    def parameter(values: np.ndarray) -> Any:
        return nn.Parameter(torch.from_numpy(np.ascontiguousarray(values)))

    def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
        layer = nn.Linear(*weight.shape, bias=bias is not None)
        layer.weight = parameter(weight.T)
        if bias is not None:
            layer.bias = parameter(bias)
        return layer

    def norm(params: Params, side: str) -> Any:
        layer = nn.LayerNorm(len(params[f"gain_{side}"]), eps=1e-5)
        layer.weight, layer.bias = parameter(params[f"gain_{side}"]), parameter(params[f"bias_{side}"])
        return layer

    class Cell(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.of_x, self.of_h = linear(params["w_x"]), linear(params["w_h"])
            self.bias = parameter(params["bias"])
            self.normed = "gain_x" in params
            if self.normed:
                self.norm_x, self.norm_h, self.norm_c = (norm(params, side) for side in "xhc")

        def side(self, x: Any) -> Any:
            from_x = self.of_x(x)
            return (self.norm_x(from_x) if self.normed else from_x) + self.bias

        def forward(self, side: Any, h: Any, c: Any) -> tuple[Any, Any]:
            from_h = self.of_h(h)
            f, i, o, g = (side + (self.norm_h(from_h) if self.normed else from_h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(self.norm_c(c) if self.normed else c), c

    class Loop(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.cells = nn.ModuleList([Cell(params["forward0"]), Cell(params["backward0"])])

        def forward(self, x: Any, mask: Any) -> Any:
            both = []
            for backward, cell in enumerate(self.cells):
                sides, keep = cell.side(x) if hoisted else None, mask[..., None]
                h = c = torch.zeros(x.shape[1], cell.of_h.in_features)
                outputs = [h] * len(x)
                for t in reversed(range(len(x))) if backward else range(len(x)):
                    new_h, new_c = cell(cell.side(x[t]) if sides is None else sides[t], h, c)
                    h, c = torch.where(keep[t], new_h, h), torch.where(keep[t], new_c, c)
                    outputs[t] = h
                both.append(torch.stack(outputs))
            return torch.cat(both, -1) * mask[..., None]

    class Packed(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            hidden = params["forward0"]["w_h"].shape[0]
            self.lstm = nn.LSTM(params["forward0"]["w_x"].shape[0], hidden, bidirectional=True)
            for name, suffix in (("forward0", ""), ("backward0", "_reverse")):
                own = params[name]
                for mine, theirs in (("w_x", "weight_ih_l0"), ("w_h", "weight_hh_l0"), ("bias", "bias_ih_l0")):
                    gates = np.split(own[mine].T, 4)
                    setattr(self.lstm, theirs + suffix, parameter(np.concatenate([gates[k] for k in _GATES])))
                second = getattr(self.lstm, "bias_hh_l0" + suffix)  # ours has one bias
                second.data.zero_()
                second.requires_grad_(False)

        def forward(self, x: Any, mask: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(0), enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], total_length=len(x))[0]

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            listener, speller = start["listener"], start["speller"]
            kind = Loop if cfg.listener_norm == "layer" else Packed
            self.layers = nn.ModuleList([kind(listener[f"layer{k}"]) for k in range(cfg.pyramids + cfg.layers)])
            if cfg.listener_norm == "over-time":
                self.gain, self.bias = parameter(listener["gain"]), parameter(listener["bias"])
            self.cells = nn.ModuleList([Cell(speller[f"layer{k}"]) for k in range(cfg.speller_layers)])
            self.query, self.keys = (linear(speller[n]["weight"]) for n in ("query", "keys"))
            self.score = linear(speller["score"][:, None])
            self.output = linear(speller["output"]["weight"], speller["output"]["bias"])

        def hear(self, batch: dict[str, Any]) -> tuple[Any, Any]:
            x, mask = batch["x"], batch["mask"]
            for k, layer in enumerate(self.layers):
                x = layer(x, mask)
                if cfg.dropout:
                    x = x * batch[f"keep_listener{k}"]
                if k < cfg.pyramids:
                    x, mask = torch.cat((x[::2], x[1::2]), -1), mask[::2]
                    if cfg.listener_norm == "over-time":
                        variance, mean = torch.var_mean(x, 0, unbiased=False, keepdim=True)
                        x = (x - mean) / torch.sqrt(variance + 1e-5) * self.gain + self.bias
            return x.transpose(0, 1), mask.T

        def forward(self, batch: dict[str, Any]) -> Any:
            values, mask = self.hear(batch)
            keys, labels = self.keys(values), batch["labels"]
            rows = labels.shape[1]
            states = [(torch.zeros(rows, cfg.speller_hidden),) * 2 for _ in self.cells]
            context, symbols = torch.zeros(rows, values.shape[2]), torch.full((rows,), Alphabet.end)
            outputs = []
            for t in range(len(labels)):
                x = torch.cat((nn.functional.one_hot(symbols, self.output.out_features).float(), context), -1)
                for k, cell in enumerate(self.cells):
                    h, c = cell(cell.side(x), *states[k])
                    states[k] = (c, h) if cfg.speller_state == "swapped" else (h, c)
                    x = h * batch[f"keep_speller{k}"][t] if cfg.dropout else h
                scores = self.score(torch.tanh(keys + self.query(x)[:, None]))[..., 0]
                weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
                context = torch.bmm(weights[:, None], values)[:, 0]
                outputs.append(self.output(torch.cat((x, context), -1)))
                symbols = labels[t]
                if cfg.sampling:
                    drawn = (outputs[-1].detach() + batch["gumbel"][t]).argmax(-1)
                    symbols = torch.where(batch["coin"][t], drawn, symbols)
            return torch.stack(outputs)

    return Network()
