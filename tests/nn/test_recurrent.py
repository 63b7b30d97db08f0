"""Recurrent layers: shapes, states, directions, depth, dropout, starts, and errors; with PyTorch's two biases beside PyTorch itself."""

import inspect

import numpy as np
import pytest
from pytorch_pairs import Pair

import duoln
from duoln import nn, ops, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.kernels import native
from duoln.randomness import Stream
from duoln.testing import check_error

LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


def _x(be, rng, *shape):
    return duoln.tensor(rng.standard_normal(shape).astype(np.float32), be)


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (1, 2), (3, 1), (4, 3), (5, 0), (0, 0)])
def test_shapes(cell, steps, batch, be, rng):
    layer = LAYERS[cell](4, 5, layers=2, bidirectional=True)
    out, last = layer(duoln.init(layer, 0, be), _x(be, rng, steps, batch, 4))
    assert out.shape == (steps, batch, 10) and len(last) == 4
    assert {s.shape for states in last for s in states} == {(batch, 5)}
    ends = LAYERS[cell](4, 5, bidirectional=True, return_sequences=False)
    assert ends(duoln.init(ends, 0, be), _x(be, rng, steps, batch, 4))[0].shape == (batch, 10)


@pytest.mark.parametrize("cell", LAYERS)
def test_a_cell_step_by_step_is_the_layer(cell, be, rng):
    one, layer = CELLS[cell](4, 5), LAYERS[cell](4, 5)
    params, x = duoln.init(layer, 0, be), _x(be, rng, 4, 3, 4)
    out, last = layer(params, x)
    states = None
    for t in range(4):
        states = one(params["forward0"], x[t], states)
        np.testing.assert_allclose(states[0].numpy(), out.numpy()[t], rtol=1e-5, atol=1e-6)
    for a, b in zip(states, last[0], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_backward_is_forward_on_the_reversed_sequence(numpy_backend, rng):
    layer = nn.LSTM(4, 5, norm="layer", bidirectional=True)
    params, x = duoln.init(layer, 0, numpy_backend), _x(numpy_backend, rng, 6, 2, 4)
    both = layer(params, x)[0].numpy()
    single = nn.LSTM(4, 5, norm="layer")
    turned = single({"forward0": params["backward0"]}, ops.flip(x, axis=0))[0].numpy()[::-1]
    np.testing.assert_allclose(both[:, :, 5:], turned, rtol=1e-5, atol=1e-6)


def test_a_state_carries_a_sequence_on(numpy_backend, rng):
    layer = nn.GRU(4, 5, norm="layer", layers=2)
    params, x = duoln.init(layer, 0, numpy_backend), _x(numpy_backend, rng, 6, 2, 4)
    whole, _ = layer(params, x)
    first, states = layer(params, x[:4])
    second, _ = layer(params, x[4:], states)
    np.testing.assert_allclose(np.concatenate([first.numpy(), second.numpy()]), whole.numpy(), rtol=1e-5, atol=1e-6)


def test_learned_states_get_gradients(numpy_backend, rng):
    layer = nn.LSTM(4, 5, norm="layer", learned_state=True)
    params, x = duoln.init(layer, 0, numpy_backend), _x(numpy_backend, rng, 3, 2, 4)
    _, grads = duoln.value_and_grad(lambda p: ops.sum(layer(p, x)[0]))(params)
    assert params["forward0"]["h0"].shape == (5,)
    for name in ("h0", "c0"):
        assert np.abs(grads["forward0"][name].numpy()).max() > 0


@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_acts_between_layers_and_only_with_masks(batch_first, numpy_backend, rng):
    layer = nn.GRU(4, 5, norm="layer", layers=2, dropout=0.5, batch_first=batch_first)
    params, x = duoln.init(layer, 0, numpy_backend), _x(numpy_backend, rng, 3, 2, 4)
    [(path, mask)] = nn.DropoutMasks(layer, 0)(0, params, x).items()
    assert path == "dropout1" and mask.shape == ((2, 3, 5) if batch_first else (3, 2, 5))
    plain = layer(params, x)[0].numpy()
    np.testing.assert_array_equal(layer(nn.with_masks(params, {path: mask * 0.0 + 1.0}), x)[0].numpy(), plain)
    zero = mask * 0.0
    silent = nn.GRU(5, 5, norm="layer")({"forward0": params["forward1"]}, zero)[0]
    silent = ops.moveaxis(silent, 1, 0) if batch_first else silent
    np.testing.assert_array_equal(layer(nn.with_masks(params, {path: zero}), x)[0].numpy(), silent.numpy())


class TestStarts:
    def test_recurrent_weights_are_orthogonal_gate_by_gate(self):
        params = nn.LSTMCell(4, 6, norm="layer").init(Stream(0, "init"))
        for k in range(4):
            gate = params["w_h"][:, 6 * k:6 * (k + 1)]
            np.testing.assert_allclose(gate.T @ gate, np.eye(6), atol=1e-6)
        assert all(len({gate.tobytes() for gate in np.split(params[name], 4, axis=1)}) == 4 for name in ("w_x", "w_h"))
        assert np.abs(params["w_x"]).max() <= 0.1 and not params["bias"].any()

    def test_gains_biases_and_forget_bias(self):
        assert set(nn.LSTMCell(4, 6, norm="layer").init(Stream(0, "i"))["gain_h"]) == {1.0}
        assert set(nn.LSTMCell(4, 6, norm="batch").init(Stream(0, "i"))["gain_h"]) == {np.float32(0.1)}
        with_tanh = nn.LSTMCell(4, 6, norm="tanh", gain=2.0).init(Stream(0, "i"))
        assert {name: {*map(float, with_tanh[name])} for name in ("alpha_x", "alpha_h", "alpha_c", "gain_c", "bias_c")} == {
            "alpha_x": {0.5}, "alpha_h": {0.5}, "alpha_c": {0.5}, "gain_c": {2.0}, "bias_c": {0.0}}
        assert set(nn.LSTMCell(4, 6, norm="layer", gain=0.5).init(Stream(0, "i"))["gain_c"]) == {0.5}
        bias = nn.LSTMCell(4, 6, norm="layer", forget_bias=1.0).init(Stream(0, "i"))["bias"]
        assert bias[6:12].tolist() == [1.0] * 6 and not bias[:6].any() and not bias[12:].any()

    @pytest.mark.parametrize("norm", ["layer", "layer-theano", "layer-per-gate"])
    def test_an_update_gate_that_keeps_the_state_is_one_less_one_that_renews_it(self, norm, numpy_backend, rng):
        """With gates at 0 or 1, the units that one of them keeps are those that the other renews."""
        x, h, kept = np.ones((3, 4)), rng.standard_normal((3, 6)), {}
        for update_gate in ("renews", "keeps"):
            cell = nn.GRUCell(4, 6, norm=norm, update_gate=update_gate, gain=0.5)
            params = tree.map(np.float64, cell.init(Stream(0, "init")))
            for name in (k for k in params if k.startswith("gain")):
                assert set(np.abs(params[name])) == {0.5} and (params[name][6:] == 0.5).all()
                params[name][:6] *= 1e5
            [new] = cell(*duoln.to_tensors((params, x, (h,)), numpy_backend))
            kept[update_gate] = new.numpy() == h
        assert np.array_equal(kept["keeps"], ~kept["renews"]) and 0 < kept["keeps"].mean() < 1

    def test_without_norms_an_update_gate_starts_alike(self):
        params, keeping = (nn.GRUCell(4, 6, update_gate=gate).init(Stream(0, "i")) for gate in ("renews", "keeps"))
        assert all(np.array_equal(params[name], keeping[name]) for name in params)


def test_errors(numpy_backend, rng):
    x = _x(numpy_backend, rng, 3, 2, 4)
    check_error(UsageError, lambda: nn.GRU(4, 5, norm="layer-cell"), "GRU", "layer-cell")
    for make in (nn.GRU, nn.RNN, nn.GRUCell, nn.RNNCell):
        check_error(UsageError, lambda make=make: make(4, 5, forget_bias=0.0), f"[{make.__name__}] expected options of norm, ", "found 'forget_bias'", "nn.LSTM(")
    check_error(UsageError, lambda: nn.LSTM(4, 5, norm="layer", dropout=0.5), "[LSTM] dropout", "one layer", "nn.Dropout")
    for make in (nn.LSTM, nn.RNN, nn.LSTMCell, nn.RNNCell):
        check_error(UsageError, lambda make=make: make(4, 5, update_gate="renews"), f"[{make.__name__}] expected options of norm, ", "found 'update_gate'", "nn.GRU(")
        assert not {"update_gate", "cell_options"} & inspect.signature(make).parameters.keys()
    check_error(UsageError, lambda: nn.GRU(4, 5, norm="layer", update_gate="forgets"), "[GRU]", "update_gate 'renews' or 'keeps'", "'forgets'")
    layer = nn.LSTM(4, 5, norm="layer", layers=2)
    params = duoln.init(layer, 0, numpy_backend)
    check_error(ShapeError, lambda: layer(params, x[0]), "(time, batch, in)", "(2, 4)")
    check_error(ShapeError, lambda: layer(params, x, []), "[(h, c), (h, c)]", "2 in all, found a list of 0")


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_names_how_many_features_it_wants(kind, numpy_backend):
    cell = kind(1, 4)
    params = duoln.to_tensors(cell.init(0), numpy_backend)
    x = duoln.tensor(np.zeros((5, 3, 2), np.float32), numpy_backend)
    check_error(ShapeError, lambda: cell.sequence(params, x), kind.__name__, "last axis of 1", "(5, 3, 2)")
    check_error(ShapeError, lambda: cell(params, x[0]), kind.__name__, "last axis of 1", "(3, 2)")


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("returns", [True, False])
def test_batch_first_is_the_same_layer_with_its_axes_exchanged(kind, returns, be):
    options = {"layers": 2, "bidirectional": True, "return_sequences": returns}
    first, usual = kind(3, 4, batch_first=True, **options), kind(3, 4, **options)
    params = duoln.to_tensors(usual.init(0), be)
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    mask = np.arange(5)[:, None] < np.array([[5, 3]])
    y, states = usual(params, duoln.tensor(x, be), mask=duoln.tensor(mask, be))
    z, last = first(params, duoln.tensor(x.swapaxes(0, 1).copy(), be), mask=duoln.tensor(mask.T.copy(), be))
    np.testing.assert_array_equal(z.numpy(), y.numpy().swapaxes(0, 1) if returns else y.numpy())
    for mine, theirs in zip(last, states, strict=True):
        np.testing.assert_array_equal(mine[0].numpy(), theirs[0].numpy())
    check_error(ShapeError, lambda: first(params, duoln.tensor(x, be), mask=duoln.tensor(mask.T.copy(), be)), "mask: expected shape (5, 2)", "(2, 5)")
    check_error(ShapeError, lambda: first(params, duoln.tensor(x[0], be)), "x (batch, time, in)", "(2, 3)")
    check_error(DtypeError, lambda: first(params, duoln.tensor(x, be), mask=[[True]]), "found list")
    check_error(DtypeError, lambda: kind(3, 4, batch_first=1), "batch_first", "True or False")


def test_a_recurrent_bias_is_a_variant_without_a_kernel_of_gpus(be):
    layer = nn.GRU(3, 4, norm="recurrent-bias")
    p = duoln.to_tensors(layer.init(0), be)["forward0"]
    assert list(p) == ["w_x", "w_h", "bias", "bias_n"] and p["bias_n"].shape == (4,)
    x, h = ops.ones((5, 2, 3), be), ops.zeros((2, 4), be)
    verdicts = ops.gru.explain(x, h, p["w_x"], p["w_h"], p["bias"], None, {"bias_n": p["bias_n"]}, norm="recurrent-bias")
    chosen = "composed"
    if be.name == "mlx":
        chosen = "steps without products"  # of `formulas.gru_cell`, too
    elif be.name == "numpy" and native.machine_refusal() is None:
        chosen = "compiled walk"
    assert verdicts[-1] == (chosen, "runs") and (len(verdicts) > 1 or chosen == "compiled walk")
    assert all("recurrent-bias" in reason or "no Metal" in reason or "one time step" in reason or reason == native.machine_refusal() for _, reason in verdicts[:-1])
    check_error(ShapeError, lambda: ops.gru(x, h, p["w_x"], p["w_h"], p["bias"], norm="recurrent-bias"), "[gru]", "bias_n", "none")
    check_error(UsageError, lambda: nn.LSTM(3, 4, norm="recurrent-bias"), "[LSTM]", "recurrent-bias")


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("cell", LAYERS)
def test_first_states_are_those_without_states(cell, learned, be, rng):
    layer = LAYERS[cell](4, 5, norm="layer", layers=2, bidirectional=True, learned_state=learned)
    params = tree.map(lambda p: p + 0.1, duoln.init(layer, 0, be))
    x, first = _x(be, rng, 3, 2, 4), layer.first_states(params, 2)
    assert len(first) == 4 and all(state.shape == (2, 5) and state.numpy().any() == learned for states in first for state in states)
    (a, last_a), (b, last_b) = duoln.compile(lambda p, x, s: layer(p, x, s))(params, x, first), layer(params, x)
    for given, own in zip(tree.leaves((a, last_a)), tree.leaves((b, last_b)), strict=True):
        np.testing.assert_array_equal(given.numpy(), own.numpy())


def test_what_is_shown_are_the_settings_that_differ_from_the_defaults():
    layer = nn.LSTM(3, 4, norm="layer", layers=2, forget_bias=1.0, gradient_limit=2.0, input_init=nn.init.glorot, eps=1e-5)
    assert repr(layer) == "LSTM(n_in=3, n_hidden=4, norm='layer', layers=2, forget_bias=1.0, gradient_limit=2.0)"
    assert repr(nn.GRU(3, 4, bias="pytorch")) == "GRU(n_in=3, n_hidden=4, norm='recurrent-bias', bias='pytorch')"


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_padding_changes_no_direction(cell, norm, be, rng):
    model, x = LAYERS[cell](3, 4, norm=norm, layers=2, bidirectional=True), rng.standard_normal((5, 2, 3)).astype(np.float32)
    params, mask = duoln.init(model, 0, be), duoln.tensor(np.arange(5)[:, None] < [[3, 5]], be)
    y, states = model(params, duoln.tensor(x, be), mask=mask)
    alone, of_alone = model(params, duoln.tensor(x[:3, :1], be))
    np.testing.assert_allclose(y.numpy()[:3, :1], alone.numpy(), atol=1e-5)
    for padded, state in zip(tree.leaves(states), tree.leaves(of_alone), strict=True):
        np.testing.assert_allclose(padded.numpy()[:1], state.numpy(), atol=1e-5)


PYTORCHS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
OPTIONS = {"one layer": {}, "two layers": {"layers": 2}, "both directions": {"layers": 2, "bidirectional": True}}
N_IN, HIDDEN = 3, 5


@pytest.mark.parametrize("kind", PYTORCHS)
def test_weights_and_biases_start_uniform_as_in_pytorch(kind):
    """All within 1 / sqrt(n_hidden), a third of its square as variance, no two alike."""
    layer, bound = PYTORCHS[kind](40, 64, layers=2, bias="pytorch"), 1 / 8
    for path, array in tree.items(layer.init(0)):
        count = array.size
        assert np.abs(array).max() <= np.float32(bound) and np.abs(array).max() > 0.95 * bound, path
        assert abs(array.mean()) < 5 * bound / np.sqrt(3 * count) and len(np.unique(array)) > 0.99 * count, path
        assert abs(array.var() * 3 / bound ** 2 - 1) < 5 * np.sqrt(0.8 / count), path
        assert path.rpartition(".")[2] in ("w_x", "w_h", "bias_ih", "bias_hh")
    scaled = PYTORCHS[kind](4, 5, bias="pytorch", recurrent_init=nn.init.orthogonal, input_init=nn.init.zeros).init(0)["forward0"]
    assert not scaled["w_x"].any() and np.allclose(scaled["w_h"][:, :5].T @ scaled["w_h"][:, :5], np.eye(5), atol=1e-6) and scaled["bias_hh"].all()


@pytest.mark.parametrize("norm", ["none", "layer", "layer-theano", "batch"])
@pytest.mark.parametrize("kind", PYTORCHS)
def test_two_biases_are_one_that_is_their_sum(kind, norm, be, rng):
    make = PYTORCHS[kind]
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


def test_wrong_biases(numpy_backend, rng):
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


def torch_layer(kind, layers=1, bidirectional=False):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(N_IN, HIDDEN, num_layers=layers, bidirectional=bidirectional)


@pytest.mark.peers
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", PYTORCHS)
def test_50_updates_of_adam_are_those_of_pytorch(kind, options, tmp_path):
    pair = Pair(torch_layer(kind, **OPTIONS[options]), PYTORCHS[kind](N_IN, HIDDEN, bias="pytorch", **OPTIONS[options]), tmp_path)
    assert pair.difference() == 0, "both biases are read and written as they are"
    np.testing.assert_allclose(*np.array(pair.train()).T, rtol=1e-9)
    assert pair.difference() < 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("kind", PYTORCHS)
def test_one_bias_trains_as_pytorch_does_with_one_of_its_two_frozen(kind, tmp_path):
    """And otherwise it does not, because Adam moves both by as much as it would move one."""
    pair = Pair(torch_layer(kind), PYTORCHS[kind](N_IN, HIDDEN), tmp_path, frozen="bias_hh")
    pair.train()
    assert pair.difference() < 1e-5
    norm = "recurrent-bias" if kind == "GRU" else "none"
    apart = Pair(torch_layer(kind), PYTORCHS[kind](N_IN, HIDDEN, norm=norm), tmp_path)
    apart.train()
    assert apart.difference() > 1e-2
