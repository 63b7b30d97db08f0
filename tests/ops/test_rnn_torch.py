"""`layer` against an independent PyTorch module written from eq. 4, 20-22 and 26-28, in float64."""

import numpy as np
import pytest
from ops.test_rnn import Problem

import duoln
from duoln import ops

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def _ln(x, gain, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, 1e-5)


def _rnn(x, h, w_x, w_h, gain, bias):
    outs = []
    for t in range(len(x)):
        h = torch.tanh(_ln(h @ w_h + x[t] @ w_x, gain, bias))
        outs.append(h)
    return torch.stack(outs), h


def _lstm(x, h, c, w_x, w_h, b, gain_x, bias_x, gain_h, bias_h, gain_c, bias_c):
    outs = []
    for t in range(len(x)):
        i, f, g, o = (_ln(h @ w_h, gain_h, bias_h) + _ln(x[t] @ w_x, gain_x, bias_x) + b).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(_ln(c, gain_c, bias_c))
        outs.append(h)
    return torch.stack(outs), h, c


def _gru(x, h, w_x, w_h, gain_x, bias_x, gain_h, bias_h):
    n, outs = h.shape[1], []
    for t in range(len(x)):
        a, b = x[t] @ w_x, h @ w_h
        zr = _ln(b[:, :2 * n], gain_h[:2 * n], bias_h[:2 * n]) + _ln(a[:, :2 * n], gain_x[:2 * n], bias_x[:2 * n])
        z, r = torch.sigmoid(zr).chunk(2, -1)
        new = torch.tanh(_ln(a[:, 2 * n:], gain_x[2 * n:], bias_x[2 * n:])
                         + r * _ln(b[:, 2 * n:], gain_h[2 * n:], bias_h[2 * n:]))
        h = (1 - z) * h + z * new
        outs.append(h)
    return torch.stack(outs), h


@pytest.mark.parametrize(("cell", "module"), [("rnn", _rnn), ("lstm", _lstm), ("gru", _gru)])
def test_outputs_and_all_gradients(cell, module, rng, numpy_backend):
    p = Problem(cell, "layer", rng, steps=7, batch=4, n_in=5, hidden=16)
    weights = [rng.standard_normal((7, 4, 16)), *(rng.standard_normal((4, 16)) for _ in range(p.n_states))]
    theirs = [torch.tensor(a, requires_grad=True) for a in p.arrays]
    outs = module(*theirs)
    sum((o * torch.tensor(w)).sum() for o, w in zip(outs, weights, strict=True)).backward()

    def value(tensors):
        results = p.op(*tensors)
        total = [ops.sum(o * duoln.tensor(w, numpy_backend)) for o, w in zip(results, weights, strict=True)]
        return sum(total[1:], total[0]), list(results)

    (_, results), grads = duoln.value_and_grad(value, has_aux=True)([duoln.tensor(a, numpy_backend) for a in p.arrays])
    for a, b in zip(results, outs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)
    for a, b in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.grad.numpy(), rtol=1e-10, atol=1e-10)
