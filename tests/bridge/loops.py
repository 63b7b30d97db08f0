"""Recurrent layers with norms as loops written in PyTorch, from eq. 4, 20-22 and 26-28 of the paper."""

import torch
from torch.nn.functional import layer_norm


def _ln(x, p, name):
    weight = p[f"layernorm_{name}_l0.weight"]
    return layer_norm(x, x.shape[-1:], weight, p[f"layernorm_{name}_l0.bias"], 1e-5)


def _bias(p):
    return p["bias_ih_l0"] + p["bias_hh_l0"]


def lstm(p, x, h, c):
    """Eq. 20-22, with PyTorch's order of gates."""
    outputs = []
    for x_t in x:
        gates = _ln(x_t @ p["weight_ih_l0"].T, p, "i") + _ln(h @ p["weight_hh_l0"].T, p, "h") + _bias(p)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(_ln(c, p, "c"))
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def gru(p, x, h):
    """Eq. 26-28, with PyTorch's order of gates and its update gate, which keeps the state."""
    cut = 2 * h.shape[-1]

    def normed(y, name):
        weight, bias = p[f"layernorm_{name}_l0.weight"], p[f"layernorm_{name}_l0.bias"]
        return (layer_norm(y[..., :cut], (cut,), weight[:cut], bias[:cut], 1e-5),
                layer_norm(y[..., cut:], (cut // 2,), weight[cut:], bias[cut:], 1e-5))

    outputs = []
    for x_t in x:
        (x_rz, x_n), (h_rz, h_n) = normed(x_t @ p["weight_ih_l0"].T, "i"), normed(h @ p["weight_hh_l0"].T, "h")
        r, z = torch.sigmoid(x_rz + h_rz).chunk(2, dim=-1)
        h = z * h + (1 - z) * torch.tanh(x_n + r * h_n)
        outputs.append(h)
    return torch.stack(outputs), h


def rnn(p, x, h):
    """Eq. 4."""
    outputs = []
    for x_t in x:
        h = torch.tanh(_ln(x_t @ p["weight_ih_l0"].T + h @ p["weight_hh_l0"].T, p, "h"))
        outputs.append(h)
    return torch.stack(outputs), h
