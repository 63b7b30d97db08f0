"""What public files of PyTorch have beside the plain layers: running statistics, no biases, prefixes, flattened images."""

import numpy as np
import pytest
import safetensors.numpy

import duoln
from duoln import nn, tree
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")
from pytorch_models import fill

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


def test_statistics_that_training_gathered_are_the_running_ones(be, tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4)), x_of(64, 3)
    params = nn.with_population(model, duoln.to_tensors(model.init(0), be), [duoln.tensor(x, be)])
    duoln.save_pytorch(tmp_path / "ours", model, params)
    theirs = T.Sequential(T.Linear(3, 4), T.BatchNorm1d(4)).eval()
    theirs.load_state_dict(tensors.load_file(tmp_path / "ours"))
    np.testing.assert_allclose(outputs(theirs, x), our_outputs(model, duoln.load_pytorch(tmp_path / "ours", model), x, be), atol=2e-6)
    theirs.train()
    np.testing.assert_allclose(outputs(theirs, x), outputs(theirs.eval(), x), atol=0.05)


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
