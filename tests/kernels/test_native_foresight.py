"""The kernels that a function will need are found in its code: none that it asks for is overlooked, few are too many."""

from functools import cache, partial

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim
from duoln.kernels import native
from duoln.kernels.native import background, foresight, loading
from duoln.kernels.native.storage import Unit
from duoln.tasks.registry import find_task
from duoln.training.train_step import make_step

FLOAT32 = np.dtype(np.float32)


class _Net(nn.Module):
    """One layer, and the loss of its output."""

    def __init__(self, layer):
        self.layer = layer

    def loss(self, params, *args):
        out = self.layer(params["layer"], *args)
        return ops.mean(out[0] if isinstance(out, tuple) else out)


def _step_of(net, optimizer):
    """A step as users write it."""
    def step(params, slots, x, rate):
        value, gradients = duoln.value_and_grad(lambda p: net.loss(p, x))(params)
        return value, *optimizer.update(params, gradients, slots, rate)

    return step


LAYERS = {
    "linear": (lambda: nn.Linear(300, 300), (64, 300)), "few rows": (lambda: nn.Linear(300, 300), (2, 300)),
    "layer norm": (lambda: nn.LayerNorm(33), (5, 33)), "batch norm": (lambda: nn.BatchNorm(33), (5, 33)),
    "in a row": (lambda: nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9, activation="relu"), ops.relu), (5, 7)),
    **{f"{kind.__name__} {norm}": (lambda kind=kind, norm=norm: kind(40, 50, norm=norm), (3, 2, 40))
       for kind in (nn.LSTM, nn.GRU, nn.RNN) for norm in ("none", "layer")}}


@pytest.fixture
def loaded(monkeypatch):
    """The files that a program has asked for."""
    state = loading._State()
    monkeypatch.setattr(loading, "_state", state)
    return lambda: {unit.file for unit in state.libraries}


@pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")
@pytest.mark.parametrize("name", LAYERS)
def test_all_that_a_step_asks_for_is_foreseen(name, loaded, numpy_backend, rng):
    make, shape = LAYERS[name]
    net, optimizer = _Net(make()), optim.Adam(learning_rate=0.001, clip=optim.clip_global_norm(1.0))
    step = _step_of(net, optimizer)
    foreseen = foresight.files_of(step)
    params = duoln.to_tensors(net.init(0), "numpy")
    x = duoln.tensor(rng.standard_normal(shape, np.float32), "numpy")
    duoln.compile(step)(params, optimizer.init(params), x, duoln.tensor(0.001, "numpy"))
    assert loaded() <= set(foreseen), loaded() - set(foreseen)
    assert len(foreseen) < len(native.sources()) * 2 / 3


@pytest.mark.parametrize(("task", "variant", "wanted", "others"), [
    ("mnist", "ln", {"norm/norm.cpp", "adam/adam.cpp", "softmax/softmax_cross_entropy.cpp"},
     {"recurrent/lstm/lstm_layer.cpp", "attention/attention.cpp", "channel_norm/batch_norm.cpp", "conv/conv.cpp"}),
    ("handwriting", "ln", {"recurrent/lstm/lstm_layer.cpp", "recurrent/lstm/cell.cpp", "adam/global_norm.cpp"},
     {"attention/attention.cpp", "recurrent/gru/gru_layer.cpp", "recurrent/lstm/lstm_none.cpp", "conv/conv.cpp"}),
    ("transformer", "pre", {"attention/attention.cpp", "norm/norm.cpp", "take/take.cpp"},
     {"recurrent/lstm/lstm_layer.cpp", "conv/conv.cpp"})])
def test_the_kernels_of_a_task(task, variant, wanted, others, numpy_backend):
    example = find_task(task)
    cfg = example.config(**example.variants[variant])
    files = set(foresight.files_of(make_step(example, example.model(cfg), example.optimizer(cfg, 1000))))
    assert wanted <= files and not others & files


def _relu(x):
    return ops.relu(x)


class _WithMethods:
    def __init__(self):
        self.layer = _relu

    def method(self, x):
        return self.layer(x)


class _WithProperty:
    @property
    def relu(self):
        return _relu


HERE, THERE = _WithMethods(), _WithProperty()


@pytest.mark.parametrize("way", [
    _relu, partial(_relu), cache(_relu), duoln.compile(_relu), HERE.method, lambda x: HERE.method(x), lambda x: THERE.relu(x),
    lambda x: [each(x) for each in (_relu,)], duoln.value_and_grad(lambda x: ops.sum(_relu(x))),
    lambda x: _WithMethods().method(x)])
def test_the_ways_to_call_an_operator(way, numpy_backend):
    assert "elementwise/formulas.cpp" in foresight.files_of(way)


def test_code_that_calls_itself_and_names_nothing_ends(numpy_backend):
    def again(x):
        return unknown_name(again(x))  # noqa: F821

    assert foresight.files_of(again) == [] and foresight.files_of(len) == []


def test_the_first_kernel_begins_those_of_the_function_around(tmp_path, monkeypatch):
    """The one that is asked for comes first, and one that fails is told when it is asked for."""
    begun = []

    def build(units, chosen, ended, stopped):
        begun.append(list(units))
        while units:
            ended(units.pop(0), "no room on this ship")

    layers = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))

    def loss(params, x):
        native.refusal("norm/norm.cpp", FLOAT32)
        return ops.mean(layers(params, x))

    monkeypatch.setattr(loading, "_state", loading._State())
    monkeypatch.setattr(background, "_works", [])
    monkeypatch.setattr(background.building, "build", build)
    monkeypatch.setenv("DUOLN_KERNELS", str(tmp_path))
    x = duoln.tensor(np.ones((2, 3), np.float32), "numpy")
    duoln.value_and_grad(loss)(duoln.to_tensors(layers.init(0), "numpy"), x)
    assert begun[0][0] == Unit("norm/norm.cpp", "float32")
    assert Unit("linear/product.cpp", "float32") in begun[0] and len(begun[0]) < 8
    assert native.refusal("linear/product.cpp", FLOAT32) == "linear/product.cpp for float32 does not compile"
    begun.clear()
    assert native.refusal("norm/norm.cpp", np.dtype(np.float64)) == "norm/norm.cpp for float64 does not compile"
    assert begun == [[Unit("norm/norm.cpp", "float64")]]
