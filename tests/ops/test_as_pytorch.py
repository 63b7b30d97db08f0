"""Losses, activations, convolutions, pools, norms and cells beside PyTorch's or its equations: values and gradients, in float64."""

import numpy as np
import pytest
from ops.test_rnn import Problem

import duoln
from duoln import ops, value_and_grad

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
F = torch.nn.functional

LABELS = np.array([0, 3, 1, 3, 2], np.int32)
_CLASSES, _TARGETS, _WEIGHT, _X, _Y = (np.random.default_rng(k).standard_normal(shape) for k, shape in enumerate(((5, 4), (5, 4), 4, (2, 6, 7, 4), (2, 9, 4))))
_TARGETS, _WEIGHT = np.exp(_TARGETS) / np.exp(_TARGETS).sum(-1, keepdims=True), np.abs(_WEIGHT)
_KERNEL, _LINE = np.random.default_rng(8).standard_normal((3, 2, 2, 6)), np.random.default_rng(9).standard_normal((3, 2, 6))


def labels(be):
    return duoln.tensor(LABELS, be)


def first(x):
    """Channels first, as PyTorch has them."""
    return x.movedim(-1, 1)


def weight(w):
    return w.movedim((-1, -2), (0, 1))


def _joined(y, total):
    """Both results of a norm of a sum."""
    return ops.concat(y, total, axis=0)


def _flat(of, *outs):
    """All outputs in a row, ours or theirs."""
    return of.concat([of.reshape(o, (-1,)) for o in outs], **({"axis": 0} if of is ops else {"dim": 0}))


# Recurrent layers with layer norm, written from eq. 4, 20-22 and 26-28.

def _ln(x, gain, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, 1e-5)


def _rnn(x, h, w_x, w_h, gain, bias):
    outs = []
    for t in range(len(x)):
        h = torch.tanh(_ln(h @ w_h + x[t] @ w_x, gain, bias))
        outs.append(h)
    return _flat(torch, torch.stack(outs), h)


def _lstm(x, h, c, w_x, w_h, b, gain_x, bias_x, gain_h, bias_h, gain_c, bias_c):
    outs = []
    for t in range(len(x)):
        i, f, g, o = (_ln(h @ w_h, gain_h, bias_h) + _ln(x[t] @ w_x, gain_x, bias_x) + b).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(_ln(c, gain_c, bias_c))
        outs.append(h)
    return _flat(torch, torch.stack(outs), h, c)


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
    return _flat(torch, torch.stack(outs), h)


def _recurrent(cell, module):
    p = Problem(cell, "layer", np.random.default_rng(0), steps=7, batch=4, n_in=5, hidden=16)
    return lambda *arrays: _flat(ops, *p.op(*arrays)), module, p.arrays


SAME = {  # ours and theirs, and the arrays by which both are differentiated
    "cross_entropy": (lambda x: ops.softmax_cross_entropy(x, labels(x.backend)), lambda x: F.cross_entropy(x, torch.tensor(LABELS).long(), reduction="none"), [_CLASSES]),
    "cross_entropy, all of it": (
        lambda x: ops.softmax_cross_entropy(x, labels(x.backend), ignore_index=3, class_weights=duoln.tensor(_WEIGHT, x.backend), label_smoothing=0.1),
        lambda x: F.cross_entropy(x, torch.tensor(LABELS).long(), weight=torch.tensor(_WEIGHT), ignore_index=3, label_smoothing=0.1, reduction="none"), [_CLASSES]),
    "cross_entropy, soft": (lambda x, t: ops.probability_cross_entropy(x, t, class_weights=duoln.tensor(_WEIGHT, x.backend)),
                            lambda x, t: F.cross_entropy(x, t, weight=torch.tensor(_WEIGHT), reduction="none"), [_CLASSES, _TARGETS]),
    "squared_error": (ops.squared_error, lambda x, t: F.mse_loss(x, t, reduction="none"), [_CLASSES, _TARGETS]),
    "absolute_error": (ops.absolute_error, lambda x, t: F.l1_loss(x, t, reduction="none"), [_CLASSES, _TARGETS]),
    "huber": (lambda x, t: ops.huber(x, t, delta=0.7), lambda x, t: F.huber_loss(x, t, delta=0.7, reduction="none"), [_CLASSES, _TARGETS]),
    "kl_div": (lambda x, t: ops.kl_div(ops.log_softmax(x), t), lambda x, t: F.kl_div(F.log_softmax(x, -1), t, reduction="none"), [_CLASSES, _TARGETS]),
    "gelu": (ops.gelu, F.gelu, [_CLASSES]), "gelu, tanh": (lambda x: ops.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), [_CLASSES]),
    "silu": (ops.silu, F.silu, [_CLASSES]), "elu": (lambda x: ops.elu(x, alpha=0.5), lambda x: F.elu(x, alpha=0.5), [_CLASSES]), "erf": (ops.erf, torch.erf, [_CLASSES]),
    "rsqrt": (ops.rsqrt, torch.rsqrt, [_TARGETS]), "pow": (ops.pow, torch.pow, [_TARGETS, _CLASSES]), "prod": (lambda x: ops.prod(x, axis=1), lambda x: torch.prod(x, 1), [_CLASSES]),
    "std": (lambda x: ops.std(x, axis=0, correction=1), lambda x: torch.std(x, 0), [_CLASSES]), "var": (lambda x: ops.var(x, axis=1, correction=1), lambda x: torch.var(x, 1), [_CLASSES]),
    "vector_norm": (lambda x: ops.vector_norm(x, axis=1, ord=3), lambda x: torch.linalg.vector_norm(x, 3, dim=1), [_CLASSES]),
    "einsum": (lambda x, y: ops.einsum("bhwc,bhkc,btc->bwkt", x, x, y), lambda x, y: torch.einsum("bhwc,bhkc,btc->bwkt", x, x, y), [_X, _Y]),
    "rms_norm": (ops.rms_norm, lambda x, g: F.rms_norm(x, (4,), g, 1e-5), [_CLASSES, _WEIGHT]),
    "rms_norm, several axes": (lambda x, g: ops.rms_norm(x, g, axis=(1, 2), eps=0.1), lambda x, g: F.rms_norm(x, (9, 4), g, 0.1), [_Y, _Y[0]]),
    "add_layer_norm": (lambda *a: _joined(*ops.add_layer_norm(*a)), lambda x, r, g, b: torch.cat([F.layer_norm(x + r, (4,), g, b), x + r]), [_CLASSES, _TARGETS, _WEIGHT, _Y[0, 0]]),
    "add_rms_norm": (lambda *a: _joined(*ops.add_rms_norm(*a)), lambda x, r, g: torch.cat([F.rms_norm(x + r, (4,), g, 1e-5), x + r]), [_CLASSES, _TARGETS, _WEIGHT]),
    "layer_norm, several axes": (lambda x, g, b: ops.layer_norm(x, g, b, axis=(-3, -2, -1)), lambda x, g, b: F.layer_norm(x, (6, 7, 4), g, b), [_X, _X[0], _X[1]]),
    "group_norm": (lambda x, g, b: ops.group_norm(x, g, b, groups=2), lambda x, g, b: F.group_norm(first(x), 2, g, b).movedim(1, -1), [_X, _WEIGHT, _TARGETS[0]]),
    "group_norm, no positions": (lambda x: ops.group_norm(x, groups=2, eps=0.1), lambda x: F.group_norm(x, 2, eps=0.1), [_CLASSES]),
    "instance_norm": (ops.instance_norm, lambda x, g, b: F.instance_norm(first(x), weight=g, bias=b).movedim(1, -1), [_X, _WEIGHT, _TARGETS[0]]),
    "conv2d": (lambda x, w: ops.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
               lambda x, w: F.conv2d(first(x), weight(w), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2).movedim(1, -1), [_X, _KERNEL]),
    "conv2d, same": (lambda x, w: ops.conv2d(x, w, padding="same", dilation=2, groups=2),
                     lambda x, w: F.conv2d(first(x), weight(w), padding="same", dilation=2, groups=2).movedim(1, -1), [_X, _KERNEL]),
    "conv1d": (lambda x, w: ops.conv1d(x, w, stride=2, padding=1, groups=2), lambda x, w: F.conv1d(first(x), weight(w), stride=2, padding=1, groups=2).movedim(1, -1), [_Y, _LINE]),
    "max_pool2d": (lambda x: ops.max_pool2d(x, size=(3, 2), stride=(1, 2), padding=(1, 1)),
                   lambda x: F.max_pool2d(first(x), (3, 2), (1, 2), (1, 1)).movedim(1, -1), [_X]),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, size=3, stride=2, padding=1), lambda x: F.avg_pool2d(first(x), 3, 2, 1).movedim(1, -1), [_X]),
    "max_pool1d": (lambda x: ops.max_pool1d(x, size=3, padding=1), lambda x: F.max_pool1d(first(x), 3, padding=1).movedim(1, -1), [_Y]),
    "avg_pool1d": (lambda x: ops.avg_pool1d(x, size=3, stride=1), lambda x: F.avg_pool1d(first(x), 3, 1).movedim(1, -1), [_Y]),
    "rnn": _recurrent("rnn", _rnn), "lstm": _recurrent("lstm", _lstm), "gru": _recurrent("gru", _gru),
}


@pytest.mark.parametrize("name", SAME)
def test_values_and_gradients(name, numpy_backend):
    ours, theirs, arrays = SAME[name]
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*leaves)
    gout = np.random.default_rng(5).standard_normal(tuple(expected.shape))
    (expected * torch.tensor(gout)).sum().backward()

    def loss(tensors):
        y = ours(*tensors)
        return ops.sum(y * duoln.tensor(gout, numpy_backend)), y

    (_, y), gradients = value_and_grad(loss, has_aux=True)([duoln.tensor(a, numpy_backend) for a in arrays])
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-11, atol=1e-12)
    for mine, leaf in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(mine.numpy(), leaf.grad.numpy(), rtol=1e-10, atol=1e-11)
