"""Recurrent layers with PyTorch's two biases: where they start, what they compute, and 50 updates of Adam beside PyTorch's."""

import numpy as np
import pytest
from pytorch_pairs import RATE, Pair

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import ShapeError, UsageError
from duoln.testing import check_error

LAYERS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
OPTIONS = {"one layer": {}, "two layers": {"layers": 2}, "both directions": {"layers": 2, "bidirectional": True}}
N_IN, HIDDEN = 3, 5


@pytest.mark.parametrize("kind", LAYERS)
def test_weights_and_biases_start_uniform_as_in_pytorch(kind):
    """All within 1 / sqrt(n_hidden), a third of its square as variance, no two alike."""
    layer, bound = LAYERS[kind](40, 64, layers=2, bias="pytorch"), 1 / 8
    for path, array in tree.items(layer.init(0)):
        count = array.size
        assert np.abs(array).max() <= np.float32(bound) and np.abs(array).max() > 0.95 * bound, path
        assert abs(array.mean()) < 5 * bound / np.sqrt(3 * count) and len(np.unique(array)) > 0.99 * count, path
        assert abs(array.var() * 3 / bound ** 2 - 1) < 5 * np.sqrt(0.8 / count), path
        assert path.rpartition(".")[2] in ("w_x", "w_h", "bias_ih", "bias_hh")
    scaled = LAYERS[kind](4, 5, bias="pytorch", recurrent_init=nn.init.orthogonal, input_init=nn.init.zeros).init(0)["forward0"]
    assert not scaled["w_x"].any() and np.allclose(scaled["w_h"][:, :5].T @ scaled["w_h"][:, :5], np.eye(5), atol=1e-6) and scaled["bias_hh"].all()


@pytest.mark.parametrize("norm", ["none", "layer", "layer-theano", "batch"])
@pytest.mark.parametrize("kind", LAYERS)
def test_two_biases_are_one_that_is_their_sum(kind, norm, be, rng):
    make = LAYERS[kind]
    if (kind, norm) in (("RNN", "layer"), ("GRU", "layer")):
        return check_error(UsageError, lambda: make(3, 4, norm=norm, bias="pytorch"), "'layer', which has no bias of its own", "found 'pytorch'")
    two, one = make(3, 4, norm=norm, bias="pytorch", bidirectional=True), make(3, 4, norm="recurrent-bias" if (kind, norm) == ("GRU", "none") else norm, bidirectional=True)
    assert two.norm == one.norm
    params = duoln.to_tensors(two.init(0), be)
    single = {}
    for name, own in params.items():
        single[name] = {key: array for key, array in own.items() if key not in ("bias_ih", "bias_hh")}
        first, second = own["bias_ih"].numpy(), own["bias_hh"].numpy()
        if two.norm == "recurrent-bias":
            single[name]["bias_n"] = duoln.tensor(second[8:], be)
            second = np.concatenate([second[:8], np.zeros(4, np.float32)])
        single[name]["bias"] = duoln.tensor(first + second, be)
    x, mask = duoln.tensor(rng.standard_normal((4, 3, 3)).astype(np.float32), be), duoln.tensor(np.arange(4)[:, None] < [4, 2, 3], be)
    np.testing.assert_allclose(two(params, x, mask=mask)[0].numpy(), one(single, x, mask=mask)[0].numpy(), rtol=1e-5, atol=1e-6)
    cell = two.cells["forward0"]
    for a, b in zip(cell(params["forward0"], x[0]), one.cells["forward0"](single["forward0"], x[0]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_both_are_trained_alike(kind, be, rng):
    """Each has the gradient of the sum, but for what the reset gate multiplies."""
    layer = LAYERS[kind](3, 4, bias="pytorch")
    params, x = duoln.to_tensors(layer.init(0), be), duoln.tensor(rng.standard_normal((4, 3, 3)).astype(np.float32), be)
    _, gradients = duoln.value_and_grad(lambda p: ops.sum(ops.square(layer(p, x)[0])))(params)
    first, second = (gradients["forward0"][name].numpy() for name in ("bias_ih", "bias_hh"))
    cut = 8 if kind == "GRU" else None
    np.testing.assert_allclose(first[:cut], second[:cut], rtol=1e-5, atol=1e-7)
    assert np.abs(first).min() > 0 and np.abs(second).min() > 0 and (cut is None or not np.allclose(first[cut:], second[cut:], rtol=0.01))


def test_errors(numpy_backend, rng):
    check_error(UsageError, lambda: nn.LSTM(3, 4, bias=False), "[LSTM] bias", "'one' or 'pytorch'", "found False", "whether a cell has a bias")
    check_error(UsageError, lambda: nn.LSTM(3, 4, bias="keras"), "[LSTM]", "bias 'one' or 'pytorch'", "'keras'")
    check_error(UsageError, lambda: nn.LSTM(3, 4, bias="pytorch", forget_bias=1.0), "forget_bias of 1.0")
    check_error(TypeError, lambda: nn.LSTM(3, 4, 2), "LSTM.__init__() takes 3 positional arguments", "; norm=, layers=, ", " by name")
    layer, x = nn.LSTM(3, 4, bias="pytorch"), duoln.tensor(np.zeros((2, 2, 3), np.float32), numpy_backend)
    check_error(ShapeError, lambda: layer(duoln.to_tensors(nn.LSTM(3, 4).init(0), numpy_backend), x), "[LSTM] expected parameters with 'bias_ih'")
    params = duoln.to_tensors(layer.init(0), numpy_backend)
    params["forward0"]["bias_hh"] = params["forward0"]["bias_hh"][:1]
    check_error(ShapeError, lambda: layer(params, x), "[LSTM] bias_hh: expected shape (16,)", "found (1,)")
    assert repr(layer) == "LSTM(n_in=3, n_hidden=4, bias='pytorch')"


# Beside PyTorch ---------------------------------------------------------------------------------------------------------------

def torch_layer(kind, layers=1, bidirectional=False):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(N_IN, HIDDEN, num_layers=layers, bidirectional=bidirectional)


@pytest.mark.peers
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_50_updates_of_adam_are_those_of_pytorch(kind, options, tmp_path):
    pair = Pair(torch_layer(kind, **OPTIONS[options]), LAYERS[kind](N_IN, HIDDEN, bias="pytorch", **OPTIONS[options]), tmp_path)
    assert pair.difference() == 0, "both biases are read and written as they are"
    np.testing.assert_allclose(*np.array(pair.train()).T, rtol=1e-9)
    assert pair.difference() < 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("kind", LAYERS)
def test_one_bias_trains_as_pytorch_does_with_one_of_its_two_frozen(kind, tmp_path):
    """And otherwise it does not, because Adam moves both by as much as it would move one."""
    pair = Pair(torch_layer(kind), LAYERS[kind](N_IN, HIDDEN), tmp_path, frozen="bias_hh")
    pair.train()
    assert pair.difference() < 1e-5
    norm = "recurrent-bias" if kind == "GRU" else "none"
    apart = Pair(torch_layer(kind), LAYERS[kind](N_IN, HIDDEN, norm=norm), tmp_path)
    apart.train()
    assert apart.difference() > 1e-2


@pytest.mark.peers
@pytest.mark.parametrize("decayed", [False, True], ids=["clipped", "decayed"])
def test_a_global_norm_and_decay_count_both_biases(decayed, tmp_path):
    torch = pytest.importorskip("torch")

    class Clipping(torch.optim.Adam):
        def step(self):
            torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
            super().step()

    pair = Pair(torch_layer("LSTM"), nn.LSTM(N_IN, HIDDEN, bias="pytorch"), tmp_path)
    if decayed:
        pair.train(lambda ps: torch.optim.AdamW(ps, lr=RATE, weight_decay=0.1), optim.AdamW(RATE, weight_decay=0.1))
    else:
        pair.train(lambda ps: Clipping(ps, lr=RATE), optim.Adam(RATE, clip=optim.clip_global_norm(0.05)))
    assert pair.difference() < 1e-5
