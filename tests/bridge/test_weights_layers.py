"""What public files of PyTorch have beside the plain layers: running statistics, no biases, prefixes, flattened images, layer norms."""

import numpy as np
import pytest
import safetensors.numpy
from pytorch_pairs import fill

import duoln
from duoln import nn, tree
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.ops.recurrent.variants import norm_shapes
from duoln.testing import check_error

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.peers


@pytest.fixture
def write(tmp_path):
    def written(module, prefix=""):
        tensors.save_file({f"{prefix}{key}": value for key, value in module.state_dict().items()}, tmp_path / "theirs")
        return tmp_path / "theirs"

    return written


def outputs(module, x):
    with torch.no_grad():
        y = module(torch.from_numpy(x))
    return (y[0] if isinstance(y, tuple) else y).numpy()


def x_of(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def our_outputs(model, params, x, be):
    y = model(duoln.to_tensors(params, be), duoln.tensor(x, be))
    return (y[0] if isinstance(y, tuple) else y).numpy()


T = torch.nn
LACKING = {
    "BatchNorm1d": (lambda: T.BatchNorm1d(4), nn.BatchNorm(4), x_of(6, 4)),
    "BatchNorm1d without statistics": (lambda: T.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm(4), x_of(6, 4)),
    "LayerNorm": (lambda: T.LayerNorm(4, bias=False), nn.LayerNorm(4, bias=False), x_of(6, 4)),
    "RNN": (lambda: T.RNN(4, 5, bias=False), nn.RNN(4, 5), x_of(3, 2, 4)),
    "LSTM": (lambda: T.LSTM(4, 5, bias=False), nn.LSTM(4, 5), x_of(3, 2, 4)),
    "LSTM of two layers": (lambda: T.LSTM(4, 5, num_layers=2, bidirectional=True, bias=False), nn.LSTM(4, 5, layers=2, bidirectional=True), x_of(3, 2, 4)),
    "GRU": (lambda: T.GRU(4, 5, bias=False), nn.GRU(4, 5), x_of(3, 2, 4)),
    "GRU with the recurrent bias": (lambda: T.GRU(4, 5, bias=False), nn.GRU(4, 5, norm="recurrent-bias"), x_of(3, 2, 4)),
    "TransformerBlock": (lambda: T.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True, bias=False), nn.TransformerBlock(8, 2, place="post"), x_of(2, 3, 8)),
}


@pytest.mark.parametrize("name", LACKING)
def test_what_a_layer_lacks_there(name, be, write, tmp_path):
    make, model, x = LACKING[name]
    theirs = fill(make())
    params = duoln.load_pytorch(write(theirs), model)
    np.testing.assert_allclose(our_outputs(model, params, x, be), outputs(theirs, x), atol=2e-6)
    duoln.save_pytorch(tmp_path / "ours", model, duoln.to_tensors(params, be))
    second = make().eval()
    missing, more = second.load_state_dict(tensors.load_file(tmp_path / "ours"), strict=False)
    assert missing == [] and all("bias" in key for key in more)
    np.testing.assert_allclose(outputs(second, x), outputs(theirs, x), atol=1e-6)
    assert tree.map(np.shape, duoln.load_pytorch(tmp_path / "ours", model)) == tree.map(np.shape, params)


def test_one_bias_of_two_is_missing(write, tmp_path):
    state = {key: np.zeros(value.shape, np.float32) for key, value in T.LSTM(4, 5).state_dict().items() if key != "bias_hh_l0"}
    (tmp_path / "a").write_bytes(safetensors.numpy.save(state))
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "a", nn.LSTM(4, 5)), "'bias_hh_l0'", "no such array")
    check_error(CheckpointError, lambda: duoln.load_pytorch(write(T.Linear(4, 5, bias=False)), nn.Linear(4, 5)), "'bias'", "no such array")
    check_error(CheckpointError, lambda: duoln.load_pytorch(write(T.LayerNorm(4, bias=False)), nn.LayerNorm(4)), "'bias'", "no such array")
    check_error(CheckpointError, lambda: duoln.load_pytorch(write(T.LayerNorm(4)), nn.LayerNorm(4, bias=False)), "'bias'", "bias=True")


def test_a_prefix_and_what_is_left_out(write, tmp_path):
    theirs, model, x = fill(T.Sequential(T.Linear(4, 3), T.LayerNorm(3))), nn.Sequential(nn.Linear(4, 3)), x_of(2, 4)
    path = write(theirs, "module.")
    check_error(CheckpointError, lambda: duoln.load_pytorch(path, model), "'0.weight'", "prefix='module.'")
    check_error(CheckpointError, lambda: duoln.load_pytorch(path, model, prefix="module."), "'module.1.bias'", "of a layer that it has not", "strict=False")
    params = duoln.load_pytorch(path, model, prefix="module.", strict=False)
    np.testing.assert_allclose(our_outputs(model, params, x, "numpy"), outputs(theirs[0], x), atol=1e-6)
    assert tree.map(np.shape, duoln.load_pytorch(path, nn.LayerNorm(3), prefix="module.1.")) == {"gain": (3,), "bias": (3,)}
    check_error(CheckpointError, lambda: duoln.load_pytorch(path, nn.Linear(3, 3), prefix="module.1.", strict=False), "'module.1.weight'", "(3, 3)")
    duoln.save_pytorch(tmp_path / "ours", model, params, prefix="module.")
    assert sorted(safetensors.numpy.load_file(tmp_path / "ours")) == ["module.0.bias", "module.0.weight"]
    check_error(DtypeError, lambda: duoln.load_pytorch(path, model, strict=1), "[load_pytorch] strict")


def test_keys_of_another_width_are_named(write):
    check_error(CheckpointError, lambda: duoln.load_pytorch(write(T.MultiheadAttention(8, 2, kdim=4)), nn.MultiHeadAttention(8, 2)), "kdim")


# Flattened images -----------------------------------------------------------------------------------------

class Own(nn.Module):
    """Flattens in its own code."""

    def __init__(self):
        self.features, self.first, self.second = nn.Sequential(nn.Conv2d(2, 3, 3)), nn.Linear(36, 12), nn.Linear(12, 5)

    def __call__(self, params, x):
        y = nn.Flatten()({}, self.features(params["features"], x))
        return self.second(params["second"], self.first(params["first"], y))


def test_the_order_behind_a_models_own_code_is_asked_for_with_the_line_to_write(tmp_path):
    model = Own()
    params, shapes = model.init(0), (2, 5, 6, 2)
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "a", model), "found nothing there")
    duoln.save_pytorch(tmp_path / "a", model, params, shapes=shapes, flattened={"first": 3})
    for call in (lambda **more: duoln.load_pytorch(tmp_path / "a", model, shapes=shapes, **more),
                 lambda **more: duoln.save_pytorch(tmp_path / "a", model, params, shapes=shapes, **more)):
        check_error(UsageError, call, "first: ", "flattened={'first': 3}", "flattened={'first': 1}")
        check_error(UsageError, lambda call=call: call(flattened={"first": 4}), "flattened['first']", "3 channels", "found 4")
        check_error(UsageError, lambda call=call: call(flattened={"first": 3, "second": 3}), "flattened['second']", "no flattened image")
        check_error(UsageError, lambda call=call: call(flattened={"first": 3, "third": 3}), "flattened", "'third'")
        check_error(UsageError, lambda call=call: call(flattened={"first": [0, 1]}), "flattened['first']", "(2,)")
        check_error(UsageError, lambda call=call: call(flattened={"first": 3}, unflattened={"third": 3}), "unflattened", "'third'")
        check_error(DtypeError, lambda call=call: call(flattened=["first"]), "flattened", "list")
        check_error(ShapeError, lambda call=call: call(flattened={"first": 0}), "flattened['first']")
    order = np.random.default_rng(0).permutation(36)
    for word, places in ((1, np.arange(36)), (order, order), (3, np.arange(36).reshape(3, 12).T.reshape(-1))):
        duoln.save_pytorch(tmp_path / "a", model, params, shapes=shapes, flattened={"first": word})
        written = safetensors.numpy.load_file(tmp_path / "a")["first.weight"]
        np.testing.assert_array_equal(written[:, places], params["first"]["weight"].T)
        again = duoln.load_pytorch(tmp_path / "a", model, shapes=shapes, flattened={"first": word})
        np.testing.assert_array_equal(again["first"]["weight"], params["first"]["weight"])


# Recurrent layers with layer norms, in modules written from the equations -------------------------------

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
KINDS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
VARIANTS = [("rnn", "layer"), ("lstm", "layer"), ("gru", "layer"), ("lstm", "layer-cell"), *(
    (cell, norm) for cell in GATES for norm in ("layer-theano", "layer-per-gate"))]


class Theirs(torch.nn.Module):
    """One layer and direction: gates i, f, g, o or r, z, n, whose update gate keeps the state."""

    def __init__(self, cell, norm, n_in, n_hidden, ending="_l0"):
        super().__init__()
        self.cell, self.norm, self.hidden, self.ending = cell, norm, n_hidden, ending
        wide, own = GATES[cell] * n_hidden, norm_shapes(cell, norm, n_hidden)
        for name, shape in {"weight_ih": (wide, n_in), "weight_hh": (wide, n_hidden), "bias_ih": (wide,), "bias_hh": (wide,)}.items():
            if name.startswith("weight") or norm in ("layer-theano", "layer-cell") or (cell, norm) == ("lstm", "layer"):
                setattr(self, f"{name}{ending}", torch.nn.Parameter(torch.zeros(shape)))
        for name, width in {"i": wide, "h": wide, "c": n_hidden}.items():
            if f"gain_{ {'i': 'x'}.get(name, name) }" in own:
                setattr(self, f"layernorm_{name}{ending}", torch.nn.LayerNorm(width))

    def of(self, name):
        return getattr(self, f"{name}{self.ending}", 0.0)

    def normed(self, name, x, parts=(0,)):
        """Layer norm of x over groups of gates that begin at these gates."""
        layer, ends = self.of(f"layernorm_{name}"), [*parts[1:], GATES[self.cell] if name != "c" else 1]
        pieces = [slice(a * self.hidden, b * self.hidden) for a, b in zip(parts, ends, strict=True)]
        return torch.cat([torch.nn.functional.layer_norm(x[..., p], x[..., p].shape[-1:], layer.weight[p], layer.bias[p]) for p in pieces], -1)

    def forward(self, xs):
        h = c = torch.zeros(xs.shape[1], self.hidden, dtype=xs.dtype)
        outputs = []
        together = (0, 2) if self.cell == "gru" else (0,)
        for x in xs:
            of_x, of_h, bias = x @ self.of("weight_ih").T, h @ self.of("weight_hh").T, self.of("bias_ih") + self.of("bias_hh")
            if self.norm == "layer-theano":
                of_x = self.normed("i", of_x + bias, together) + (0.0 if self.cell == "gru" else bias)
                of_h = self.normed("h", of_h, together)
            elif self.norm == "layer" and self.cell != "rnn":
                of_x, of_h = self.normed("i", of_x, together) + bias, self.normed("h", of_h, together)
            else:
                of_x = of_x + bias
            h, c = getattr(self, self.cell)(of_x, of_h, h, c)
            outputs.append(h)
        return torch.stack(outputs)

    def rnn(self, of_x, of_h, h, c):
        total = of_x + of_h
        return torch.tanh(total if self.norm == "layer-theano" else self.normed("h", total)), c

    def lstm(self, of_x, of_h, h, c):
        total = of_x + of_h
        i, f, g, o = (self.normed("h", total, range(4)) if self.norm == "layer-per-gate" else total).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        c_norm = self.normed("c", c)
        return o.sigmoid() * c_norm.tanh(), c_norm if self.norm == "layer-per-gate" else c

    def gru(self, of_x, of_h, h, c):
        if self.norm == "layer-per-gate":
            layer, size = self.of("layernorm_h"), self.hidden
            r, z = (torch.nn.functional.layer_norm((of_x + of_h)[..., p], (size,), layer.weight[p], layer.bias[p]).sigmoid()
                    for p in (slice(0, size), slice(size, 2 * size)))
            n = torch.nn.functional.layer_norm(of_x[..., 2 * size:] + r * of_h[..., 2 * size:], (size,), layer.weight[2 * size:], layer.bias[2 * size:])
        else:
            (r, z, n), (r_h, z_h, n_h) = of_x.chunk(3, -1), of_h.chunk(3, -1)
            r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
            n = n + r * n_h
        return (1 - z) * n.tanh() + z * h, c


@pytest.mark.parametrize(("cell", "norm"), VARIANTS)
def test_layers_have_their_outputs_both_ways(cell, norm, numpy_backend, tmp_path):
    theirs, ours = fill(Theirs(cell, norm, 3, 5)), KINDS[cell](3, 5, norm=norm)
    x = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)
    tensors.save_file(theirs.state_dict(), tmp_path / "theirs")
    params = duoln.load_pytorch(tmp_path / "theirs", ours)
    assert duoln.tree.map(np.shape, params) == duoln.tree.map(np.shape, ours.init(0))
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    actual = ours(duoln.to_tensors(params, numpy_backend), duoln.tensor(x, numpy_backend))[0].numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    duoln.save_pytorch(tmp_path / "ours", ours, params)
    again = Theirs(cell, norm, 3, 5)
    again.load_state_dict(tensors.load_file(tmp_path / "ours"))
    np.testing.assert_allclose(again(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cell", "norm"), VARIANTS)
def test_cells(cell, norm, numpy_backend, tmp_path):
    theirs, ours = fill(Theirs(cell, norm, 3, 5, ending="")), CELLS[cell](3, 5, norm=norm)
    x = np.random.default_rng(0).standard_normal((1, 2, 3)).astype(np.float32)
    tensors.save_file(theirs.state_dict(), tmp_path / "theirs")
    params = duoln.load_pytorch(tmp_path / "theirs", ours, numpy_backend)
    np.testing.assert_allclose(ours(params, duoln.tensor(x[0], numpy_backend))[0].numpy(), theirs(torch.from_numpy(x))[0].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_several_layers_and_directions(tmp_path):
    model = nn.Sequential(nn.LSTM(3, 4, norm="layer", layers=2, bidirectional=True))
    params = model.init(0)
    duoln.save_pytorch(tmp_path / "a", model, params)
    names = tensors.load_file(tmp_path / "a").keys()
    assert {"0.layernorm_i_l0.weight", "0.layernorm_c_l1_reverse.bias", "0.weight_hh_l1"} <= names and len(names) == 4 * 10
    duoln.tree.map(np.testing.assert_array_equal, duoln.load_pytorch(tmp_path / "a", model), params)


def test_biases_may_be_missing_but_not_those_of_norms(tmp_path):
    state = fill(Theirs("lstm", "layer", 3, 5)).state_dict()
    tensors.save_file({name: array for name, array in state.items() if not name.startswith("bias")}, tmp_path / "a")
    assert not duoln.load_pytorch(tmp_path / "a", nn.LSTM(3, 5, norm="layer"))["forward0"]["bias"].numpy().any()
    tensors.save_file({name: array for name, array in state.items() if name != "layernorm_i_l0.bias"}, tmp_path / "b")
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "b", nn.LSTM(3, 5, norm="layer")), "layernorm_i_l0.bias", "no such array")
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "a", nn.LSTM(3, 5), strict=False), "layernorm", "LSTM does not")
