"""LSTM, GRU and RNN inside PyTorch, beside torch.nn's own layers and those of `duoln.nn`."""

import copy
import functools
import io
import pickle

import numpy as np
import pytest

import duoln
from duoln import nn, tree
from duoln.errors import DtypeError, GradientError, ShapeError, UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from safetensors.torch import save_file
from torch.autograd import forward_ad
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

from duoln.bridge import torch as bridge

KINDS = "LSTM", "GRU", "RNN"
FORMS = {"one layer": {}, "two layers, both directions": {"num_layers": 2, "bidirectional": True}, "no bias": {"bias": False},
         "batch first": {"batch_first": True}}


def _flat(states):
    return states if isinstance(states, tuple) else (states,)


def _pair(kind, **options):
    """torch.nn's layer and ours with its state."""
    theirs = getattr(torch.nn, kind)(5, 16, dtype=torch.float64, **options)
    ours = getattr(bridge, kind)(5, 16, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def _compare(theirs, ours, *args):
    """Values and all gradients."""
    results, leaves = [], [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    for layer in (theirs, ours):
        y, states = layer(*args)
        values = [getattr(y, "data", y), *_flat(states)] if not isinstance(y, torch.Tensor) else [y, *_flat(states)]
        loss = sum((v ** 2 * torch.linspace(-1, 2, v.numel(), dtype=v.dtype).view(v.shape)).sum() for v in values)
        results.append([*values, *torch.autograd.grad(loss, [*leaves, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", KINDS)
class TestAsTorch:
    def test_values_and_gradients(self, kind, options):
        theirs, ours = _pair(kind, **options)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        x = torch.randn(7, 3, 5, dtype=torch.float64, requires_grad=True)
        _compare(theirs, ours, x)
        batch = 7 if options.get("batch_first") else 3
        state = torch.randn(ours.num_layers * (1 + ours.bidirectional), batch, 16, dtype=torch.float64)
        _compare(theirs, ours, x, (state, state / 2) if kind == "LSTM" else state)
        _compare(theirs, ours, torch.randn(4, 5, dtype=torch.float64))  # one sequence without an axis for the batch

    def test_packed_sequences(self, kind, options):
        theirs, ours = _pair(kind, **options)
        sequences = [torch.randn(n, 5, dtype=torch.float64) for n in (3, 7, 2, 7)]
        _compare(theirs, ours, pack_sequence(sequences, enforce_sorted=False))
        packed = pack_padded_sequence(torch.randn(7, 2, 5, dtype=torch.float64), [7, 3])
        _compare(theirs, ours, packed)
        y, _ = ours(packed)
        assert (y.batch_sizes == packed.batch_sizes).all() and y.sorted_indices is None

    def test_first_weights_from_one_seed(self, kind, options):
        first = []
        for package in (torch.nn, bridge):
            torch.manual_seed(3)
            first.append([p.detach() for p in getattr(package, kind)(5, 16, **options).parameters()])
        assert all((a == b).all() for a, b in zip(*first, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_with_layer_norm(kind):
    """The values are those of `duoln.nn`'s layers, see below."""
    layer = getattr(bridge, kind)(2, 3, norm="layer", dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)
    first = [torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(layer.states)]

    def run(x, *values):
        own, hx = values[:len(names)], values[len(names):]
        y, states = torch.func.functional_call(layer, dict(zip(names, own, strict=True)), (x, hx if kind == "LSTM" else hx[0]))
        return y, *_flat(states)

    assert torch.autograd.gradcheck(run, (torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True), *values, *first))


@pytest.mark.parametrize(("kind", "norm"), [("LSTM", "layer"), ("LSTM", "layer-cell"), ("LSTM", "layer-theano"), ("LSTM", "layer-per-gate"),
                                            ("GRU", "layer"), ("GRU", "layer-per-gate"), ("GRU", "none"), ("RNN", "layer")])
def test_a_state_dict_is_read_by_load_pytorch(kind, norm, tmp_path):
    layer = getattr(bridge, kind)(5, 16, num_layers=2, bidirectional=True, norm=norm)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p) / 4)
    save_file(layer.state_dict(), tmp_path / "model.safetensors")
    own = getattr(nn, kind)(5, 16, norm="recurrent-bias" if (kind, norm) == ("GRU", "none") else norm, layers=2, bidirectional=True)
    params = duoln.load_pytorch(tmp_path / "model.safetensors", own, "numpy")
    x = torch.randn(6, 3, 5)
    np.testing.assert_allclose(own(params, duoln.tensor(x.numpy(), "numpy"))[0].numpy(), layer(x)[0].detach().numpy(), atol=2e-6)


def test_weights_and_their_gradients_lie_as_pytorchs():
    """No gradient is copied into another layout when it is kept."""
    for kind, options in (("LSTM", {"norm": "layer"}), ("LSTM", {}), ("RNN", {"norm": "layer"}), ("GRU", {"norm": "layer"})):
        layer = getattr(bridge, kind)(40, 33, **options)
        assert all(p.is_contiguous() for p in layer.parameters())
        y, _ = layer(torch.randn(3, 2, 40))
        gradients = torch.autograd.grad(y.sum(), [layer.weight_ih_l0, layer.weight_hh_l0])
        assert all(g.is_contiguous() for g in gradients)


def test_copies_compute_the_same():
    layer = bridge.LSTM(4, 6, norm="layer")
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    x = torch.randn(3, 2, 4)
    for each in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False), copy.deepcopy(layer).double().float()):
        torch.testing.assert_close(each(x)[0], layer(x)[0])


def test_what_takes_parameters_as_flat_memory(tmp_path):
    """LBFGS, `parameters_to_vector`, pruning, files of safetensors, weights that were transposed."""
    layer, x = bridge.LSTM(3, 4, norm="layer"), torch.randn(5, 2, 3)
    expected = layer(x)[0].detach()
    save_file(layer.state_dict(), tmp_path / "model.safetensors")
    vector = torch.nn.utils.parameters_to_vector(layer.parameters())
    torch.nn.utils.vector_to_parameters(vector, layer.parameters())
    torch.testing.assert_close(layer(x)[0], expected)
    turned = copy.deepcopy(layer)
    for p in turned.parameters():
        p.data = p.data.t().contiguous().t() if p.dim() == 2 else p.data
    torch.testing.assert_close(turned(x)[0], expected)
    in_one_memory, apart = layer, copy.deepcopy(layer)
    for each in (in_one_memory, apart):
        optimizer = torch.optim.LBFGS(each.parameters(), max_iter=3)

        def loss(each=each, optimizer=optimizer):
            optimizer.zero_grad()
            value = each(x)[0].square().mean()
            value.backward()
            return value

        optimizer.step(loss)
    for p, q in zip(in_one_memory.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert not torch.equal(layer(x)[0], expected)
    pruned = prune.l1_unstructured(copy.deepcopy(layer), "weight_hh_l0", amount=0.5)
    assert (pruned.weight_hh_l0 == 0).sum() == 32 and not torch.equal(pruned(x)[0], layer(x)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.script, which forward mode uses
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, "one"])
@pytest.mark.parametrize(("kind", "norm"), [("LSTM", "layer"), ("LSTM", "none"), ("LSTM", "layer-theano"), ("RNN", "layer"), ("GRU", "layer"),
                                            ("GRU", "none"), ("GRU", "layer-per-gate")])
def test_a_time_step_outside_of_a_gradient(kind, norm, bias, layers):
    """It has the bits of the same call within one, whatever became of the parameters since the call before. A GRU's gates stand in
    another order there, so sums over them are rounded otherwise.
    """
    layer, x = getattr(bridge, kind)(5, 21, layers, norm=norm, bias=bias), torch.randn(1, 3, 5)
    same = functools.partial(torch.allclose, atol=1e-6) if kind == "GRU" else torch.equal
    for p in layer.parameters():
        torch.nn.init.uniform_(p, -0.5, 1.5)
    state = torch.randn(layers, 3, 21)
    hx = (state, state / 2) if kind == "LSTM" else state

    def compare():
        expected = layer(x, hx)
        with torch.no_grad():
            for _ in range(2):
                for a, b in zip(_flat(layer(x, hx)[1]), _flat(expected[1]), strict=True):
                    assert same(a, b)
                y, first = layer(x, hx)[0], layer(x[:, :1], tree.map(lambda s: s[:, :1].contiguous(), hx))[0]
                assert same(y, expected[0]) and torch.allclose(first, y[:, :1], atol=1e-6)
        return expected[0]

    before, changes = compare(), [lambda p: p.add_(0.1), lambda p: setattr(p, "data", p.detach() * 1.5),
                                  lambda p: setattr(p, "data", p.detach().t().contiguous().t() if p.dim() == 2 else p.detach().clone())]
    for change in changes:
        with torch.no_grad():
            for p in layer.parameters():
                change(p)
        compare()
    assert not torch.equal(compare(), before)
    with torch.no_grad(), forward_ad.dual_level():  # a tangent is not dropped
        check_error(GradientError, lambda: layer(forward_ad.make_dual(x, torch.ones_like(x)), hx), "forward mode")
    layer.weight_hh_l0 = torch.nn.Parameter(torch.randn(layer.weight_hh_l0.shape))
    compare()
    prune.l1_unstructured(layer, "weight_hh_l0", amount=0.5)
    compare()
    copy.deepcopy(layer)(x, hx)
    layer.double()
    with torch.no_grad():
        check_error(DtypeError, lambda: layer(x, hx), f"[{kind}]", "float64")
        layer.weight_ih_l0.data = torch.zeros(3, 3, dtype=torch.float64)
        check_error(ShapeError, lambda: layer(x.double(), tree.map(torch.Tensor.double, hx)), "expected")


def test_names_and_habits():
    layer = bridge.LSTM(4, 6, 2, dropout=0.5, norm="layer", init="paper")
    layer.flatten_parameters()
    assert [w.shape for w in layer.all_weights[1]] == [(24, 6), (24, 6), (24,), (24,)]
    gate = layer.weight_hh_l0[6:12]
    torch.testing.assert_close(gate @ gate.T, torch.eye(6), atol=1e-5, rtol=0)
    assert layer.bias_ih_l0.abs().max() == 0 and layer.weight_ih_l0.abs().max() <= 0.1
    assert repr(layer).startswith("LSTM(\n  4, 6, num_layers=2, dropout=0.5, norm='layer', init='paper'")
    assert [name for name, _ in bridge.LSTM(2, 3, bias="one").named_parameters()] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]
    assert bridge.GRU(2, 3, bias="one")(torch.randn(4, 1, 2))[0].shape == (4, 1, 3)
    x = torch.randn(3, 2, 4)
    assert not torch.equal(layer(x)[0], layer(x)[0]) and torch.equal(layer.eval()(x)[0], layer(x)[0])
    with pytest.warns(UserWarning, match="one layer"):
        bridge.LSTM(2, 3, dropout=0.1)


WRONG = {"a projection": (lambda: bridge.LSTM(3, 4, proj_size=2), UsageError, "[LSTM]", "proj_size", "2"),
         "relu": (lambda: bridge.RNN(3, 4, nonlinearity="relu"), UsageError, "[RNN]", "'relu'"),
         "a population": (lambda: bridge.GRU(3, 4, norm="batch"), UsageError, "[GRU]", "'batch'"),
         "a norm for comparisons": (lambda: bridge.LSTM(3, 4, norm="tanh"), UsageError, "[LSTM]", "layer-cell", "'tanh'", "; duoln.nn has it"),
         "a variant": (lambda: bridge.GRU(3, 4, norm="leyer"), UsageError, "[GRU] expected a norm of none, layer, layer-theano, layer-per-gate; found 'leyer'",
                       "did you mean 'layer'?"),
         "duoln's layers": (lambda: bridge.RNN(3, 4, layers=2), TypeError, "RNN.__init__() got", "'layers'; did you mean 'num_layers'?"),
         "duoln's sizes": (lambda: bridge.GRU(n_in=3, n_hidden=4), TypeError, "'n_in'; did you mean 'input_size'?"),
         "duoln's affine": (lambda: bridge.LayerNorm(3, affine=False), TypeError, "LayerNorm.__init__() got", "did you mean 'elementwise_affine'?"),
         "a bias": (lambda: bridge.LSTM(3, 4, bias="two"), UsageError, "[LSTM] bias", "'two'"),
         "a dtype": (lambda: bridge.LSTM(3, 4)(torch.zeros(2, 1, 3, dtype=torch.float64)), DtypeError, "[LSTM]", "float32", "x.to(torch.float32)"),
         "a list": (lambda: bridge.LSTM(3, 4)([1.0]), DtypeError, "[LSTM]", "PackedSequence", "list"),
         "a pair for a GRU": (lambda: bridge.GRU(3, 4)(torch.zeros(2, 1, 3), (1, 2)), ShapeError, "[GRU] hx", "1 (int)"),
         "a width": (lambda: bridge.LSTM(3, 4)(torch.zeros(2, 1, 5)), ShapeError, "[LSTM]", "3", "5"),
         "axes": (lambda: bridge.LSTM(3, 4)(torch.zeros(3)), ShapeError, "[LSTM]", "(3,)"),
         "states": (lambda: bridge.LSTM(3, 4)(torch.zeros(2, 1, 3), torch.zeros(1, 1, 4)), ShapeError, "[LSTM] hx", "(1, 1, 4)"),
         "a batch of states": (lambda: bridge.GRU(3, 4)(torch.zeros(2, 1, 3), torch.zeros(1, 2, 4)), ShapeError, "[GRU] hx", "(1, 2, 4)")}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_calls(wrong):
    call, kind, *words = wrong
    check_error(kind, call, *words)
