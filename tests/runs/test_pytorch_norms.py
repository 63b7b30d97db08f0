"""Recurrent layers with layer norms, in modules of PyTorch written from the equations in its names and its order of gates."""

import numpy as np
import pytest
from pytorch_pairs import Pair

import duoln
from duoln import nn
from duoln.errors import CheckpointError
from duoln.ops.recurrent.variants import norm_shapes
from duoln.testing import check_error

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")
from pytorch_models import fill

pytestmark = pytest.mark.peers

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


@pytest.mark.parametrize(("cell", "norm"), [("lstm", "layer"), ("lstm", "layer-cell"), ("rnn", "layer-theano"), ("gru", "layer-theano")])
def test_50_updates_of_adam_are_those_of_a_loop_in_pytorch_with_two_biases(cell, norm, tmp_path):
    pair = Pair(fill(Theirs(cell, norm, 3, 5)), KINDS[cell](3, 5, norm=norm, bias="pytorch"), tmp_path)
    assert pair.difference() == 0
    pair.train()
    assert pair.difference() < 1e-5


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
