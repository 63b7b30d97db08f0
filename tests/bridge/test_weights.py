"""Parameters from and to PyTorch's files: to the bit there and back, the same outputs beside it, and wrong files refused by name."""

import numpy as np
import pytest
import safetensors.numpy

import duoln
from duoln import nn, ops, tree
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.ops.recurrent.variants import COMPARED
from duoln.testing import check_error


class Tagger(nn.Module):
    """A small model of all kinds: embedding, bidirectional LSTM, layer norm, GRU and linear layers."""

    def __init__(self):
        self.words = nn.Embedding(7, 4)
        self.read = nn.LSTM(4, 5, layers=2, bidirectional=True)
        self.norm = nn.LayerNorm(10)
        self.write = nn.GRU(10, 6, norm="recurrent-bias")
        self.out = nn.Sequential(nn.Linear(6, 8), ops.gelu, nn.Linear(8, 3, bias=False))

    def __call__(self, params, ids):
        h, _ = self.read(params["read"], self.words(params["words"], ids))
        h, _ = self.write(params["write"], self.norm(params["norm"], h))
        return self.out(params["out"], h)


MODELS = {
    "Linear": nn.Linear(4, 3), "Linear without bias": nn.Linear(4, 3, bias=False), "LayerNorm": nn.LayerNorm(5), "LayerNorm of three axes": nn.LayerNorm((3, 2, 5)),
    "LayerNorm without parameters": nn.Sequential(nn.LayerNorm(5, affine=False), nn.Linear(5, 2)), "RMSNorm": nn.RMSNorm(5), "GroupNorm": nn.GroupNorm(2, 4),
    "InstanceNorm": nn.InstanceNorm(4), "Embedding": nn.Embedding(6, 3),
    "Conv2d": nn.Conv2d(2, 3, 3, stride=2, padding=1), "Conv1d": nn.Conv1d(4, 6, 3, dilation=2, groups=2),
    "Conv2d in groups": nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=False), "RNN": nn.RNN(4, 5), "LSTM": nn.LSTM(4, 5), "LSTM of two layers": nn.LSTM(4, 5, layers=2, bidirectional=True),
    "GRU": nn.GRU(4, 5, norm="recurrent-bias"), "GRU of two layers": nn.GRU(4, 5, norm="recurrent-bias", layers=2, bidirectional=True),
    "GRU without the bias": nn.GRU(4, 5), "LSTM with two biases": nn.LSTM(4, 5, layers=2, bias="pytorch"), "GRU with two biases": nn.GRU(4, 5, bidirectional=True, bias="pytorch"), "LSTMCell": nn.LSTMCell(4, 5), "GRUCell": nn.GRUCell(4, 5, norm="recurrent-bias"), "RNNCell": nn.RNNCell(4, 5),
    "MultiHeadAttention": nn.MultiHeadAttention(8, 2), "MultiHeadAttention without bias": nn.MultiHeadAttention(8, 4, bias=False),
    "TransformerBlock": nn.TransformerBlock(8, 2, place="post"), "TransformerBlock, causal, norms before": nn.TransformerBlock(8, 4, 12, activation="gelu", causal=True),
    "blocks in a Sequential": nn.Sequential(nn.TransformerBlock(8, 1), nn.TransformerBlock(8, 2), nn.LayerNorm(8)),
    "Tagger": Tagger(), "a norm in a Sequential": nn.Sequential(nn.Linear(3, 2), ops.relu, nn.LayerNorm(2)),
}


def random_params(model):
    """Parameters of which every value counts, zeros of both signs among them."""
    rng = np.random.default_rng(0)

    def drawn(x):
        y = rng.standard_normal(x.shape).astype(np.float32)
        y.flat[:2] = (0.0, -0.0)[:y.size]
        return y

    return tree.map(drawn, model.init(0))


def bits(params):
    return {path: (str(a.dtype), a.shape, (a.numpy() if isinstance(a, duoln.Tensor) else a).tobytes()) for path, a in tree.items(params)}


@pytest.mark.parametrize("name", MODELS)
def test_written_and_read_again_to_the_bit(name, tmp_path):
    model = MODELS[name]
    params = random_params(model)
    duoln.save_pytorch(tmp_path / "a", model, params)
    again = duoln.load_pytorch(str(tmp_path / "a"), model)
    assert bits(again) == bits(params) and list(bits(again)) == list(bits(params))
    duoln.save_pytorch(tmp_path / "b", model, again)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def torch_module(name):
    from torch import nn as theirs

    class TheirTagger(theirs.Module):
        def __init__(self):
            super().__init__()
            self.words, self.read = theirs.Embedding(7, 4), theirs.LSTM(4, 5, num_layers=2, bidirectional=True)
            self.norm, self.write = theirs.LayerNorm(10), theirs.GRU(10, 6)
            self.out = theirs.Sequential(theirs.Linear(6, 8), theirs.GELU(), theirs.Linear(8, 3, bias=False))

        def forward(self, ids):
            return self.out(self.write(self.norm(self.read(self.words(ids))[0]))[0])

    def block(*sizes, **options):
        return theirs.TransformerEncoderLayer(*sizes, dropout=0.0, batch_first=True, **options)

    return {
        "MultiHeadAttention": lambda: theirs.MultiheadAttention(8, 2, batch_first=True),
        "MultiHeadAttention without bias": lambda: theirs.MultiheadAttention(8, 4, bias=False, batch_first=True),
        "TransformerBlock": lambda: block(8, 2, 32), "TransformerBlock, causal, norms before": lambda: block(8, 4, 12, activation="gelu", norm_first=True),
        "blocks in a Sequential": lambda: theirs.Sequential(block(8, 1, 32, norm_first=True), block(8, 2, 32, norm_first=True), theirs.LayerNorm(8)),
        "Linear": lambda: theirs.Linear(4, 3), "Linear without bias": lambda: theirs.Linear(4, 3, bias=False), "LayerNorm": lambda: theirs.LayerNorm(5), "LayerNorm of three axes": lambda: theirs.LayerNorm((3, 2, 5)),
        "LayerNorm without parameters": lambda: theirs.Sequential(theirs.LayerNorm(5, elementwise_affine=False), theirs.Linear(5, 2)), "RMSNorm": lambda: theirs.RMSNorm(5, eps=1e-5),
        "GroupNorm": lambda: theirs.GroupNorm(2, 4), "InstanceNorm": lambda: theirs.InstanceNorm2d(4, affine=True),
        "Embedding": lambda: theirs.Embedding(6, 3), "Conv2d": lambda: theirs.Conv2d(2, 3, 3, stride=2, padding=1),
        "Conv1d": lambda: theirs.Conv1d(4, 6, 3, dilation=2, groups=2),
        "Conv2d in groups": lambda: theirs.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=False), "RNN": lambda: theirs.RNN(4, 5),
        "LSTM": lambda: theirs.LSTM(4, 5), "LSTM of two layers": lambda: theirs.LSTM(4, 5, num_layers=2, bidirectional=True),
        "GRU": lambda: theirs.GRU(4, 5), "GRU of two layers": lambda: theirs.GRU(4, 5, num_layers=2, bidirectional=True),
        "LSTM with two biases": lambda: theirs.LSTM(4, 5, num_layers=2), "GRU with two biases": lambda: theirs.GRU(4, 5, bidirectional=True),
        "LSTMCell": lambda: theirs.LSTMCell(4, 5), "GRUCell": lambda: theirs.GRUCell(4, 5), "RNNCell": lambda: theirs.RNNCell(4, 5),
        "Tagger": TheirTagger, "a norm in a Sequential": lambda: theirs.Sequential(theirs.Linear(3, 2), theirs.ReLU(), theirs.LayerNorm(2)),
    }[name]()


def inputs_of(name):
    rng = np.random.default_rng(1)
    if name in ("Embedding", "Tagger"):
        return rng.integers(0, 6, (6, 2)).astype(np.int32)
    if "Attention" in name or "lock" in name:
        return rng.standard_normal((2, 5, 8)).astype(np.float32)
    shape = {"Conv2d": (2, 7, 6, 2), "Conv1d": (2, 9, 4), "Conv2d in groups": (2, 7, 6, 2), "LayerNorm": (3, 5), "RMSNorm": (3, 5), "LayerNorm without parameters": (3, 5), "LayerNorm of three axes": (2, 3, 2, 5), "GroupNorm": (2, 3, 5, 4), "InstanceNorm": (2, 3, 5, 4), "a norm in a Sequential": (4, 3)}.get(name, (3, 4) if "Cell" in name or "Linear" in name else (6, 2, 4))
    return rng.standard_normal(shape).astype(np.float32)


CHANNELS = ("Conv", "GroupNorm", "InstanceNorm")
"""The layers whose channels come first in PyTorch."""


def outputs(name, module, x):
    """The outputs of their module, in our layout."""
    import torch

    with torch.no_grad():
        if "Attention" in name or "lock" in name:
            steps, t = torch.from_numpy(x), torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return (module(steps, steps, steps)[0] if "Attention" in name else module(steps, src_mask=t, is_causal=True) if "causal" in name
                    else module(steps)).numpy()
        y = module(torch.from_numpy(x.astype(np.int64) if x.dtype == np.int32 else np.moveaxis(x, -1, 1).copy() if name.startswith(CHANNELS) else x))
    y = (y[0] if isinstance(y, tuple) else y).numpy()
    return np.moveaxis(y, 1, -1) if name.startswith(CHANNELS) else y


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name in MODELS if name != "GRU without the bias"])
def test_the_outputs_are_pytorchs_both_ways(name, be, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    theirs, model, x = torch_module(name), MODELS[name], inputs_of(name)
    save_file(theirs.state_dict(), tmp_path / "theirs")
    params = duoln.load_pytorch(tmp_path / "theirs", model)
    assert tree.map(np.shape, params) == tree.map(np.shape, model.init(0))
    y = model(duoln.to_tensors(params, be), duoln.tensor(x, be))
    np.testing.assert_allclose((y[0] if isinstance(y, tuple) else y).numpy(), outputs(name, theirs, x), atol=1e-5)

    duoln.save_pytorch(tmp_path / "ours", model, params)
    second = torch_module(name)
    second.load_state_dict(load_file(tmp_path / "ours"))
    np.testing.assert_allclose(outputs(name, second, x), outputs(name, theirs, x), atol=1e-6)
    biases = ("bias_ih", "bias_hh")
    for key, value in theirs.state_dict().items():
        if not any(bias in key for bias in biases):
            assert torch.equal(second.state_dict()[key], value), key
    assert bits(duoln.load_pytorch(tmp_path / "ours", model)) == bits(params)


@pytest.mark.peers
def test_a_gru_of_pytorch_needs_the_recurrent_bias(tmp_path):
    pytest.importorskip("torch")
    from safetensors.torch import save_file

    module = torch_module("GRU")
    save_file(module.state_dict(), tmp_path / "a")
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "a", nn.GRU(4, 5)), "bias_hh of 0 in the gate n", "norm='recurrent-bias'")


def write(path, arrays):
    path.write_bytes(safetensors.numpy.save(arrays))
    return path


def test_wrong_files_are_refused_by_name(tmp_path):
    model = nn.Sequential(hidden=nn.Linear(2, 3))
    right = {"hidden.weight": np.ones((3, 2), np.float32), "hidden.bias": np.ones(3, np.float32)}
    cases = {
        "another shape": ({**right, "hidden.weight": np.ones((2, 3), np.float32)}, ["'hidden.weight'", "expected shape (3, 2) for Linear", "found (2, 3)"]),
        "missing": ({"hidden.weight": right["hidden.weight"]}, ["'hidden.bias'", "expected shape (3,) for Linear", "found no such array"]),
        "another name": ({"fc.weight": right["hidden.weight"], "fc.bias": right["hidden.bias"]}, ["'hidden.weight'", "it has fc.bias, fc.weight"]),
        "too many": ({**right, "norm.weight": np.ones(4, np.float32)}, ["'norm.weight'", "shape (4,)"]),
        "integers": ({**right, "hidden.bias": np.ones(3, np.int64)}, ["'hidden.bias'", "expected float16, bfloat16, float32, float64", "found I64"]),
    }
    for arrays, words in cases.values():
        path = write(tmp_path / "a", arrays)
        check_error(CheckpointError, lambda path=path: duoln.load_pytorch(path, model), str(path), *words)
    assert np.array_equal(duoln.load_pytorch(write(tmp_path / "a", right), model)["hidden"]["weight"], np.ones((2, 3)))


@pytest.mark.parametrize("content", [b"", b"not a file of tensors at all", b"\xff" * 8 + b"{}", b"\x02\0\0\0\0\0\0\0{}x"])
def test_damaged_files_are_refused(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "a", nn.Linear(2, 3)), str(tmp_path / "a"))
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "none", nn.Linear(2, 3)), "none")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["Linear", "LSTM", "Tagger", "TransformerBlock"])
def test_16_bits_stay_both_ways(name, dtype, be, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    state, model = torch_module(name).to(getattr(torch, dtype)).state_dict(), MODELS[name]
    state = {key: value * (0 if "bias_hh" in key else 1) for key, value in state.items()}  # two biases become their sum
    save_file(state, tmp_path / "theirs")
    params = duoln.load_pytorch(tmp_path / "theirs", model, be)
    assert {leaf.dtype for leaf in tree.leaves(params)} == {dtype}
    duoln.save_pytorch(tmp_path / "ours", model, params)
    again = load_file(tmp_path / "ours")
    assert again.keys() == state.keys() and all(torch.equal(again[key], value) and again[key].dtype == value.dtype for key, value in state.items())


def test_half_of_a_layer_in_16_bits_is_read_in_32(tmp_path):
    mixed = {"weight": np.ones((3, 2), np.float16), "bias": np.ones(3, np.float32)}
    assert {a.dtype for a in duoln.load_pytorch(write(tmp_path / "a", mixed), nn.Linear(2, 3)).values()} == {"float32"}


def test_models_and_parameters_that_do_not_fit(tmp_path):
    class Own(nn.Module):
        def weights(self, rng):
            return {"scale": np.ones(3, np.float32)}

    linear, params = nn.Linear(2, 3), nn.Linear(2, 3).init(0)
    rows = [
        (UsageError, nn.Sequential(nn.LSTM(2, 3, norm="batch")), {}, ["0: expected a recurrent layer", "LSTM with batch norm"]),
        *((UsageError, nn.LSTM(2, 3, norm=norm), {}, ["model: expected a recurrent layer", f"LSTM with norm '{norm}'"]) for norm in COMPARED),
        (UsageError, nn.Sequential(a=nn.TransformerBlock(4, 2, norm="rms")), {}, ["a: expected a block", "norm 'rms'"]),
        (UsageError, nn.TransformerBlock(4, 2, norm="none"), {}, ["model: expected a block", "norm 'none'"]),
        (UsageError, nn.GRU(2, 3, learned_state=True), {}, ["model: expected a recurrent layer", "a learned state"]),
        (UsageError, nn.Sequential(a=Own()), {}, ["a: expected a layer of Linear, LayerNorm", "found Own"]),
        (UsageError, nn.WeightNorm(linear), {}, ["found WeightNorm"]), (DtypeError, params, params, ["model: expected a Module", "found dict"]),
    ]
    for kind, model, given, words in rows:
        check_error(kind, lambda model=model, given=given: duoln.save_pytorch(tmp_path / "a", model, given), "[save_pytorch]", *words)
        check_error(kind, lambda model=model: duoln.load_pytorch(tmp_path / "a", model), "[load_pytorch]", *words)
    gru = nn.GRU(2, 3, norm="recurrent-bias")
    of_gru = gru.init(0)
    wrong = [
        (ShapeError, linear, {"weight": params["weight"]}, ["[Linear]", "'bias'"]), (ShapeError, linear, {**params, "weight": params["weight"].T}, ["'weight'", "(3, 2)", "(2, 3)"]),
        (ShapeError, linear, {**params, "bias": np.ones(4, np.float32)}, ["'bias'", "(3,)", "(4,)"]), (DtypeError, linear, {**params, "bias": [1.0] * 3}, ["'bias' of Linear", "list"]),
        (DtypeError, linear, {**params, "bias": np.ones(3, np.int32)}, ["'bias' of Linear", "int32"]), (ShapeError, nn.Sequential(linear), params, ["[save_pytorch]", "'0'"]),
        (ShapeError, linear, None, ["the parameters of Linear", "None"]), (ShapeError, gru, {}, ["[GRU]", "'forward0'"]),
        *((ShapeError, gru, {"forward0": {**of_gru["forward0"], key: np.ones((2, 2), np.float32)}}, [key if key == "bias_n" else "a last axis of 9", "(2, 2)"])
          for key in ("w_x", "w_h", "bias", "bias_n")),
        (ShapeError, gru, {"forward0": {**of_gru["forward0"], "w_x": np.ones((5, 9), np.float32)}}, ["'weight_ih_l0'", "(9, 2)", "(9, 5)"]),
    ]
    for kind, model, given, words in wrong:
        check_error(kind, lambda model=model, given=given: duoln.save_pytorch(tmp_path / "a", model, given), *words)
    assert list(tmp_path.iterdir()) == []


def test_biases_whose_sum_16_bits_do_not_hold(tmp_path):
    arrays = {f"{name}_l0": np.full(shape, 6e4, np.float16) for name, shape in (("weight_ih", (5, 4)), ("weight_hh", (5, 5)), ("bias_ih", (5,)), ("bias_hh", (5,)))}
    check_error(CheckpointError, lambda: duoln.load_pytorch(write(tmp_path / "a", arrays), nn.RNN(4, 5)), "120000", "65504")
