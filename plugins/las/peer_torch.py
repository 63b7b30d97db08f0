"""The same training step in PyTorch, as its users write it: what `duoln bench train --peer torch` times."""

from __future__ import annotations

from typing import Any

from duoln.nn import Params
from duoln.plugins.las.corpus import Alphabet
from duoln.plugins.las.task import Las
from duoln.tasks.task import Peer
from duoln.tasks.torch_peer import layers, parameter, training_step, walk


def build(cfg: Any, start: Params, fused: bool = False) -> Peer:
    """See `Task.peer`; with `fused`, PyTorch's fused Adam in the place of its default one.

    Layers without norms are `torch.nn.LSTM` over packed sequences; with norms a loop over time, as the speller is.
    """
    import torch

    f, utils = torch.nn.functional, torch.nn.utils.rnn
    listener, speller = (layers(torch, start[name]) for name in ("listener", "speller"))
    for k in range(cfg.pyramids + cfg.layers):
        own = start["listener"][f"layer{k}"]
        if "gain_c" not in own["forward0"]:
            setattr(listener, f"layer{k}", _packed(torch, own))
    net = torch.nn.ModuleList((listener, speller))

    def heard_by(layer: Any, x: Any, mask: Any) -> Any:
        if isinstance(layer, torch.nn.LSTM):
            lengths = utils.pack_padded_sequence(x, mask.sum(0), enforce_sorted=False)
            return utils.pad_packed_sequence(layer(lengths)[0], total_length=len(x))[0]
        both = []
        for cell, back in ((layer.forward0, False), (layer.backward0, True)):
            xs, real = (x.flip(0), mask.flip(0)) if back else (x, mask)
            first = x.new_zeros(x.shape[1], cell.of_h.in_features)
            states = walk(torch, cell, map(cell.side, xs), real[..., None], first)
            both.append(torch.stack(states[::-1] if back else states))
        return torch.cat(both, -1) * mask[..., None]

    def hear(batch: dict[str, Any]) -> tuple[Any, Any]:
        x, mask = batch["x"], batch["mask"]
        if cfg.constant:
            x = torch.cat((x, x.new_full((*x.shape[:2], 1), cfg.constant)), -1)
        for k in range(cfg.pyramids + cfg.layers):
            x = heard_by(getattr(listener, f"layer{k}"), x, mask)
            if cfg.dropout:
                x = x * batch[f"keep_listener{k}"]
            if k < cfg.pyramids:
                x, mask = torch.cat((x[::2], x[1::2]), -1), mask[::2]
                if cfg.listener_norm == "over-time":
                    variance, mean = torch.var_mean(x, 0, unbiased=False, keepdim=True)
                    x = (x - mean) / torch.sqrt(variance + 1e-5) * listener.gain + listener.bias
        return x.transpose(0, 1), mask.T

    def loss_of(batch: dict[str, Any]) -> Any:
        values, mask = hear(batch)
        keys, labels = speller.keys(values), batch["labels"]
        rows = labels.shape[1]
        cells = [getattr(speller, f"layer{k}") for k in range(cfg.speller_layers)]
        states = [(values.new_zeros(rows, cfg.speller_hidden),) * 2 for _ in cells]
        context, symbols = values.new_zeros(rows, values.shape[2]), labels.new_full((rows,), Alphabet.end)
        outputs = []
        for t in range(len(labels)):
            x = torch.cat((f.one_hot(symbols, speller.output.out_features).float(), context), -1)
            for k, cell in enumerate(cells):
                h, c = cell(cell.side(x), *states[k])
                states[k] = (c, h) if cfg.speller_state == "swapped" else (h, c)
                x = h * batch[f"keep_speller{k}"][t] if cfg.dropout else h
            scores = torch.tanh(keys + speller.query(x)[:, None]) @ speller.score
            weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
            context = torch.bmm(weights[:, None], values)[:, 0]
            outputs.append(speller.output(torch.cat((x, context), -1)))
            symbols = labels[t]
            if cfg.sampling:
                drawn = (outputs[-1].detach() + batch["gumbel"][t]).argmax(-1)
                symbols = torch.where(batch["coin"][t], drawn, symbols)
        each = f.cross_entropy(torch.stack(outputs).transpose(1, 2), labels, reduction="none")
        return (each * batch["weight"]).sum(0).mean()

    return training_step(torch, net, Las().optimizer(cfg, 0), loss_of, fused)


def _packed(torch: Any, params: Params) -> Any:
    """PyTorch's bidirectional LSTM with our weights. It has one bias, as ours: its second one would be trained too."""
    forward = params["forward0"]
    lstm = torch.nn.LSTM(forward["w_x"].shape[0], forward["w_h"].shape[0], bidirectional=True)
    for name, suffix in (("forward0", ""), ("backward0", "_reverse")):
        for ours, theirs in (("w_x", "weight_ih_l0"), ("w_h", "weight_hh_l0"), ("bias", "bias_ih_l0")):
            setattr(lstm, theirs + suffix, parameter(torch, params[name][ours].T))
        getattr(lstm, "bias_hh_l0" + suffix).requires_grad_(False).zero_()
    return lstm
