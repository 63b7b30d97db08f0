"""Functions and layers of duoln inside MLX, beside mlx.nn's own."""

from functools import partial

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import GradientError, ShapeError, UsageError
from duoln.testing import check_error

mx = pytest.importorskip("mlx.core")

from mlx import nn
from mlx.utils import tree_flatten

from duoln.bridge import mlx as bridge


def _close(a, b, atol=1e-4):
    assert a.shape == b.shape and mx.allclose(a, b, atol=atol, rtol=1e-4).item()


def _loss(layer, x):
    y = layer(x)
    y = mx.concatenate([y[0], y[1][..., -1:, :]], axis=-2) if isinstance(y, tuple) else y
    return (y ** 2).sum()


@pytest.mark.parametrize("shape", [(3, 7, 5), (7, 5), (1, 1, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_values_and_gradients_as_mlx(kind, bias, shape):
    theirs, ours = (getattr(package, kind)(5, 8, bias=bias) for package in (nn, bridge))
    ours.update(theirs.parameters())
    x, results = mx.random.normal(shape), []
    for layer in (theirs, ours):
        value, of_layer = nn.value_and_grad(layer, _loss)(layer, x)
        results.append({"value": value, "x": mx.grad(partial(_loss, layer))(x), **dict(tree_flatten(of_layer))})
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        _close(results[1][name], expected)


@pytest.mark.parametrize(("kind", "norm"), [("LSTM", "layer"), ("LSTM", "layer-cell"), ("GRU", "layer"), ("RNN", "layer")])
def test_a_sequence_in_two_parts(kind, norm):
    layer, x = getattr(bridge, kind)(5, 8, norm=norm), mx.random.normal((3, 6, 5))
    whole, first = layer(x), layer(x[:, :4])
    if kind == "LSTM":
        (whole, cell), (first, c) = whole, first
        second, last = layer(x[:, 4:], first[:, -1], c[:, -1])
        _close(last, cell)
    else:
        second = layer(x[:, 4:], first[:, -1])
    _close(mx.concatenate([first, second], axis=1), whole)


def test_layer_norm_by_the_equations():
    layer, x = bridge.LSTM(5, 8, norm="layer"), mx.random.normal((2, 4, 5))
    norm = {name: getattr(layer, f"layernorm_{name}") for name in "ihc"}
    h = c = mx.zeros((2, 8))
    for t in range(4):
        i, f, g, o = mx.split(norm["i"](x[:, t] @ layer.Wx.T) + norm["h"](h @ layer.Wh.T) + layer.bias, 4, axis=-1)
        c = mx.sigmoid(f) * c + mx.sigmoid(i) * mx.tanh(g)
        h = mx.sigmoid(o) * mx.tanh(norm["c"](c))
    _close(layer(x)[0][:, -1], h)


def test_trees_and_integers():
    pick = bridge.differentiable(lambda params, ids, n: {"y": ops.take(params["w"], ids, axis=0) ** 2, "n": n})
    w, ids = mx.random.normal((4, 3)), mx.array([0, 2])
    assert pick({"w": w}, ids, 3)["n"] == 3
    gradient = mx.grad(lambda w: pick({"w": w}, ids, 3)["y"].sum())(w)
    _close(gradient, 2 * w * mx.array([[1.0], [0.0], [1.0], [0.0]]))


@pytest.mark.filterwarnings("ignore::duoln.errors.GradientWarning")
def test_functions_without_arrays_or_results():
    """MLX ends the process at a function of its own that has none."""
    assert bridge.differentiable(lambda x: 3.0)(mx.ones(3)) == 3.0
    assert bridge.differentiable(lambda x: x.sum().item())(mx.ones(3)) == 3.0
    assert bridge.differentiable(lambda x: x)(2.0) == 2.0


def test_a_second_gradient_is_a_named_error():
    square = bridge.differentiable(ops.square)
    twice = mx.grad(lambda x: mx.grad(lambda y: square(y).sum())(x).sum())
    check_error(GradientError, lambda: twice(mx.ones(3)), "[differentiable]", "first order")


WAYS = {"tensor": lambda w: duoln.tensor(w, "mlx"), "in a list": lambda w: duoln.tensor([w[0], w[1]], "mlx"), "in a tree": lambda w: duoln.to_tensors({"w": w}, "mlx"),
        "on the host": lambda w: duoln.tensor(w, "numpy"), "DLPack": duoln.from_dlpack, "DLPack of MLX": lambda w: duoln.from_dlpack(w, "mlx")}
TRACES = {"grad": mx.grad, "vjp": lambda f: lambda w: mx.vjp(f, [w], [mx.ones(())]), "compile": mx.compile, "compiled grad": lambda f: mx.compile(mx.grad(f)),
          "vmap": lambda f: lambda w: mx.vmap(f)(w[None]), "checkpoint": lambda f: mx.grad(mx.checkpoint(f)), "jvp": lambda f: lambda w: mx.jvp(f, [w], [w])}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_traced_array_becomes_no_constant_without_a_word(way, trace):
    """As an argument it has its gradient; a tensor made of it would have none."""
    def caught(w):
        return bridge.differentiable(lambda x: x * way(w * 1.0))(mx.ones(2)).sum()

    check_error(GradientError, lambda: trace(caught)(mx.ones(2)), "whose gradient would be lost", "an argument", "numpy.array(x)")

    def beside(w):  # arrays that depend on nothing that is traced
        constants = [duoln.tensor(x, "mlx") for x in (mx.ones(2), mx.arange(2) * 3, np.ones(2))]
        return bridge.differentiable(lambda w: w * constants[0])(w).sum()

    if trace is not TRACES["checkpoint"]:
        trace(beside)(mx.ones(2))
    _close(mx.grad(beside)(mx.ones(2)), mx.ones(2))


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_norms_as_mlx(kind):
    theirs, ours, of_sum = getattr(nn, kind)(6), getattr(bridge, kind)(6), getattr(bridge, f"Add{kind}")(6)
    x, residual = mx.random.normal((4, 6)), mx.random.normal((4, 6))
    _close(ours(x), theirs(x))
    y, total = of_sum(x, residual)
    _close(y, theirs(x + residual))
    _close(total, x + residual)
    _close(mx.grad(lambda x: (ours(x) ** 3).sum())(x), mx.grad(lambda x: (theirs(x) ** 3).sum())(x))


def test_wrong_calls():
    check_error(UsageError, lambda: bridge.LSTM(3, 4, norm="batch"), "[LSTM]", "'batch'")
    check_error(UsageError, lambda: bridge.LSTM(3, 4, norm="rms"), "[LSTM]", "layer-cell", "'rms'", "; duoln.nn has it")
    check_error(UsageError, lambda: bridge.RNN(3, 4, nonlinearity=nn.relu), "[RNN]", "tanh")
    check_error(ShapeError, lambda: bridge.GRU(3, 4)(mx.zeros((2, 5))), "[GRU]", "(2, 5)")
