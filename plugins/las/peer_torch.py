"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.las.alphabet import Alphabet
from duoln.plugins.las.model import CLIP
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import adam, linear, lstm_cell, parameter, training_step


def build(cfg: Any, start: Params, fused: bool = False, hoisted: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    Layers without norms are `torch.nn.LSTM` over packed sequences; with norms a loop over time, as the speller is.
    With `hoisted` a layer's inputs of all steps are projected and normalised before its loop.
    """
    import torch

    model = _network(torch, cfg, start, hoisted)
    optimizer = adam(torch, model, cfg, fused)

    def loss_of(batch: dict[str, Any]) -> Any:
        each = torch.nn.functional.cross_entropy(model(batch).transpose(1, 2), batch["labels"], reduction="none")
        return (each * batch["weight"]).sum(0).mean()

    def clip_and_set_rate(done: int) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), CLIP)
        if cfg.decay_steps:
            optimizer.param_groups[0]["lr"] = cfg.learning_rate * 10 ** (-done / cfg.decay_steps)

    return training_step(torch, optimizer, loss_of, clip_and_set_rate)


def _network(torch: Any, cfg: Any, start: Params, hoisted: bool) -> Any:
    nn = torch.nn

    class Loop(nn.Module):  # type: ignore[name-defined]
        def __init__(self, params: Params) -> None:
            super().__init__()
            self.cells = nn.ModuleList([lstm_cell(torch, params[way]) for way in ("forward0", "backward0")])

        def forward(self, x: Any, mask: Any) -> Any:
            both = []
            for backward, cell in enumerate(self.cells):
                sides, keep = cell.side(x) if hoisted else None, mask[..., None]
                h = c = x.new_zeros(x.shape[1], cell.of_h.in_features)
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
                    setattr(self.lstm, theirs + suffix, parameter(torch, own[mine].T))
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
            self.layers = nn.ModuleList([(Loop if "gain_c" in own["forward0"] else Packed)(own)
                                         for own in listener["layers"]])
            if cfg.listener_norm == "over-time":
                self.gain, self.bias = (parameter(torch, listener[name]) for name in ("gain", "bias"))
            self.cells = nn.ModuleList([lstm_cell(torch, own) for own in speller["cells"]])
            self.query, self.keys = (linear(torch, **speller[n]) for n in ("query", "keys"))
            self.score = linear(torch, speller["score"][:, None])
            self.output = linear(torch, **speller["output"])

        def hear(self, batch: dict[str, Any]) -> tuple[Any, Any]:
            x, mask = batch["x"], batch["mask"]
            if cfg.constant:
                x = torch.cat((x, x.new_full((*x.shape[:2], 1), cfg.constant)), -1)
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
            states = [(values.new_zeros(rows, cfg.speller_hidden),) * 2 for _ in self.cells]
            context, symbols = values.new_zeros(rows, values.shape[2]), labels.new_full((rows,), Alphabet.end)
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
