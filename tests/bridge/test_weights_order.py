"""Where features of flattened images go: models whose layers are declared, called and flattened in many ways, against PyTorch's."""


import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import CheckpointError, UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")
from pytorch_pairs import fill

pytestmark = pytest.mark.peers
T = torch.nn


class Theirs(T.Module):
    """Layers by name, and a function that calls them."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.of = forward

    def forward(self, *inputs):
        return self.of(self, *inputs)


class Ours(nn.Module):
    """The same here: `forward(call, x)`, where `call(name, x)` calls a layer."""

    def __init__(self, forward, **layers):
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.of = forward

    def __call__(self, params, image, numbers=None):
        given = [image] if numbers is None else [image, numbers]
        return self.of(lambda name, x: getattr(self, name)(params[name], x), *given)


class Gate(nn.Module):
    """Squeeze and excitation of 2 channels."""

    def __init__(self):
        self.down, self.up = nn.Linear(2, 4), nn.Linear(4, 2)

    def __call__(self, params, x):
        scale = ops.sigmoid(self.up(params["up"], ops.relu(self.down(params["down"], ops.mean(x, axis=(1, 2))))))
        return x * scale.reshape(scale.shape[0], 1, 1, 2)


class TheirGate(T.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = T.Linear(2, 4), T.Linear(4, 2)

    def forward(self, x):
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))[:, :, None, None]


class Flattening(nn.Linear):
    """A layer of PyTorch's that is called in another way."""

    def __call__(self, params, x):
        return super().__call__(params, nn.Flatten()({}, x))


class TheirFlattening(T.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1))


def x_of(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


IMAGE = x_of(2, 6, 6, 1)
CASES = {
    "two heads": (
        lambda: Theirs(lambda m, x: torch.cat([m.policy(torch.relu(m.conv(x)).flatten(1)), m.value(torch.relu(m.conv(x)).flatten(1))], 1),
                       conv=T.Conv2d(1, 2, 3), policy=T.Linear(32, 3), value=T.Linear(32, 1)),
        lambda: Ours(lambda f, x: ops.concat(f("policy", nn.Flatten()({}, ops.relu(f("conv", x)))), f("value", nn.Flatten()({}, ops.relu(f("conv", x)))), axis=1),
                     conv=nn.Conv2d(1, 2, 3), policy=nn.Linear(32, 3), value=nn.Linear(32, 1)),
        [IMAGE], {"flattened": {"policy": 2, "value": 2}}),
    "columns with embedded places": (
        lambda: Theirs(lambda m, x: m.out(m.conv(x).permute(0, 3, 1, 2).flatten(2) + m.places.weight).mean(1), conv=T.Conv2d(1, 2, 3),
                       places=T.Embedding(4, 8), out=T.Linear(8, 3)),
        lambda: Ours(lambda f, x: ops.mean(f("out", ops.permute_dims(f("conv", x), (0, 2, 1, 3)).reshape(2, 4, 8)
                                             + f("places", duoln.tensor(np.arange(4, dtype=np.int32), x.backend))), axis=1),
                     conv=nn.Conv2d(1, 2, 3), places=nn.Embedding(4, 8), out=nn.Linear(8, 3)),
        [IMAGE], {"flattened": {"out": 2}, "unflattened": {"places": 2}}),
    "a gate in a Sequential": (
        lambda: T.Sequential(T.Conv2d(1, 2, 3), TheirGate(), T.Flatten(), T.Linear(32, 3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), Gate(), nn.Flatten(), nn.Linear(32, 3)),
        [IMAGE], {"flattened": {"3": 2}}),
    "a layer of the user's own class": (
        lambda: T.Sequential(T.Conv2d(1, 2, 3), TheirFlattening(32, 3)), lambda: nn.Sequential(nn.Conv2d(1, 2, 3), Flattening(32, 3)),
        [IMAGE], {"flattened": {"1": 2}}),
    "an image into the first Linear": (
        lambda: T.Sequential(T.Flatten(), T.Linear(72, 4), T.ReLU(), T.Linear(4, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 3)),
        [x_of(2, 6, 6, 2)], {"flattened": {"1": 2}}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_known_is_asked_for_and_read_right(name, tmp_path):
    make, make_ours, inputs, words = CASES[name]
    theirs, ours = fill(make()), make_ours()
    path, shapes = tmp_path / "theirs", inputs[0].shape if len(inputs) == 1 else inputs
    tensors.save_file(theirs.state_dict(), path)
    for role, entries in words.items():  # without any one of the words the model is refused
        for place in entries:
            given = {**words, role: {key: word for key, word in entries.items() if key != place}}
            for call in (lambda given=given: duoln.load_pytorch(path, ours, shapes=shapes, **given),
                         lambda given=given: duoln.save_pytorch(tmp_path / "ours", ours, ours.init(0), shapes=shapes, **given)):
                check_error(UsageError, call, f"] {place}: ", f"{role}={{{place!r}: ")
    check_error(UsageError, lambda: duoln.load_pytorch(path, ours))
    params = duoln.load_pytorch(path, ours, shapes=shapes, **words)
    with torch.no_grad():
        right = theirs(*[torch.from_numpy(np.moveaxis(x, -1, 1).copy()) for x in inputs]).numpy()
    y = ours(duoln.to_tensors(params, "numpy"), *[duoln.tensor(x, "numpy") for x in inputs]).numpy()
    np.testing.assert_allclose(y, right, atol=1e-5 * np.abs(right).max())
    duoln.save_pytorch(tmp_path / "ours", ours, params, shapes=shapes, **words)
    again = tensors.load_file(tmp_path / "ours")
    assert all(torch.equal(again[key], value) for key, value in theirs.state_dict().items() if "num_batches" not in key)


def test_without_shapes_the_words_alone_are_enough_and_each_is_asked_for(tmp_path):
    make, make_ours, inputs, words = CASES["two heads"]
    theirs, ours = fill(make()), make_ours()
    tensors.save_file(theirs.state_dict(), tmp_path / "theirs")
    check_error(UsageError, lambda: duoln.load_pytorch(tmp_path / "theirs", ours), "] policy: ", "shapes=")
    check_error(UsageError, lambda: duoln.load_pytorch(tmp_path / "theirs", ours, flattened={"policy": 2}), "] value: ", "shapes=")
    params = duoln.load_pytorch(tmp_path / "theirs", ours, **words)
    same = duoln.load_pytorch(tmp_path / "theirs", ours, **words, shapes=inputs[0].shape)
    duoln.tree.map(np.testing.assert_array_equal, params, same)


def both(theirs, ours, tmp_path):
    tensors.save_file(theirs.state_dict(), tmp_path / "theirs")
    return lambda **given: duoln.load_pytorch(tmp_path / "theirs", ours, **given)


def test_what_cannot_be_read_in_another_order_is_refused(tmp_path):
    def of(*layers):
        return both(fill(T.Sequential(T.Conv2d(1, 4, 3), T.Flatten(), *(a for a, _ in layers))), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), *(b for _, b in layers)),
                    tmp_path)

    check_error(UsageError, of((T.GroupNorm(2, 64), nn.GroupNorm(2, 64))), "2: ", "other groups")
    assert of((T.GroupNorm(1, 64), nn.GroupNorm(1, 64)))()["2"]["gain"].shape == (64,)
    areas = both(fill(T.Sequential(T.Conv2d(1, 4, 3), T.LayerNorm([4, 4, 4]))), nn.Sequential(nn.Conv2d(1, 4, 3), nn.LayerNorm((4, 4, 4))), tmp_path)
    check_error(UsageError, areas, "1: ", "last axis", "flattened={'1': 1}")
    alone = both(fill(Theirs(None, conv=T.Conv2d(1, 2, 3), out=T.Linear(32, 3))),
                 Ours(lambda f, x: ops.linear(nn.Flatten()({}, f("conv", x)), duoln.tensor(np.ones((32, 3), np.float32), x.backend)), conv=nn.Conv2d(1, 2, 3), out=nn.Linear(32, 3)),
                 tmp_path)
    check_error(UsageError, lambda: alone(shapes=(2, 6, 6, 1)), "linear", "outside of a layer")


def test_values_that_leave_the_model_and_come_back_are_asked_for(tmp_path):
    theirs = fill(Theirs(lambda m, x: m.out(m.norm(m.conv(x).flatten(1))), conv=T.Conv2d(1, 2, 3), norm=T.BatchNorm1d(32), out=T.Linear(32, 3)))
    ours = Ours(lambda f, x: f("out", f("norm", duoln.tensor(nn.Flatten()({}, f("conv", x)).numpy(), x.backend))), conv=nn.Conv2d(1, 2, 3), norm=nn.BatchNorm(32), out=nn.Linear(32, 3))
    load = both(theirs, ours, tmp_path)
    check_error(UsageError, lambda: load(shapes=(1, 6, 6, 1)), "norm: ", "not followed", "flattened={'norm': 1}")
    check_error(UsageError, lambda: load(shapes=(1, 6, 6, 1), flattened={"norm": 2}), "out: ", "not followed")
    params = load(shapes=(1, 6, 6, 1), flattened={"norm": 2, "out": 2})
    with torch.no_grad():
        right = theirs(torch.from_numpy(np.moveaxis(IMAGE, -1, 1).copy())).numpy()
    np.testing.assert_allclose(ours(duoln.to_tensors(params, "numpy"), duoln.tensor(IMAGE, "numpy")).numpy(), right, atol=1e-5 * np.abs(right).max())


NAMES = {
    "torch.compile of a parallel model": (lambda: T.Linear(4, 3), lambda state: {f"_orig_mod.module.0.{key}": value for key, value in state.items()},
                                          "prefix='_orig_mod.module.'"),
    "parametrised": (lambda: torch.nn.utils.parametrizations.weight_norm(T.Linear(4, 3)), lambda state: {f"0.{key}": value for key, value in state.items()},
                     "remove_parametrizations"),
    "shared": (lambda: T.Embedding(3, 4), lambda state: {f"first.{key}": value for key, value in state.items()}, "'first.weight' has this shape"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_message_about_a_missing_array_says_where_it_may_be(name, tmp_path):
    make, renamed, word = NAMES[name]
    tensors.save_file(renamed(make().state_dict()), tmp_path / "theirs")
    model = nn.Sequential(first=nn.Embedding(3, 4), out=nn.Linear(4, 3, bias=False)) if name == "shared" else nn.Sequential(nn.Linear(4, 3))
    check_error(CheckpointError, lambda: duoln.load_pytorch(tmp_path / "theirs", model), "'out.weight'" if name == "shared" else "'0.weight'", word)


def test_a_layer_that_is_called_with_two_orders_is_refused(tmp_path):
    ours = Ours(lambda f, x: f("out", nn.Flatten()({}, f("conv", x))) + f("out", ops.mean(f("wide", x), axis=(1, 2))),
                conv=nn.Conv2d(1, 2, 3), wide=nn.Conv2d(1, 32, 3), out=nn.Linear(32, 3))
    theirs = Theirs(None, conv=T.Conv2d(1, 2, 3), wide=T.Conv2d(1, 32, 3), out=T.Linear(32, 3))
    check_error(UsageError, lambda: both(theirs, ours, tmp_path)(shapes=(2, 6, 6, 1), flattened={"out": 2}), "flattened['out']", "no flattened image")
    order = np.arange(32).reshape(2, 16).T.reshape(-1)
    check_error(UsageError, lambda: both(theirs, ours, tmp_path)(shapes=(2, 6, 6, 1), flattened={"out": order}), "flattened['out']", "no flattened image")
    assert both(theirs, ours, tmp_path)(shapes=(2, 6, 6, 1), flattened={"out": 1})["out"]["weight"].shape == (32, 3)


LOST = {
    "statistics": (lambda: T.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.InstanceNorm(4), ("running_mean", "InstanceNorm does not")),
    "a bias": (lambda: T.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1, bias=False), ("'1.bias'", "bias=True")),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("strict", [True, False])
def test_numbers_of_a_layer_are_never_left_out(name, strict, tmp_path):
    make, layer, words = LOST[name]
    call = both(fill(T.Sequential(T.Conv2d(1, 4, 3), make())), nn.Sequential(nn.Conv2d(1, 4, 3), layer), tmp_path)
    with pytest.raises(CheckpointError) as caught:
        call(strict=strict)
    assert all(word in str(caught.value) for word in words) and "strict=False" not in str(caught.value)
