"""Lists, tuples and dicts of modules: parameters mirror them, and all that goes by paths finds them."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import ShapeError
from duoln.randomness import Stream
from duoln.testing import check_error


class Block(nn.Module):
    """Two layers."""

    def __init__(self, width):
        self.norm, self.hidden, self.drop = nn.BatchNorm(width), nn.Linear(width, width), nn.Dropout(0.5)

    def __call__(self, params, x):
        y = self.hidden(params["hidden"], self.norm(params["norm"], x))
        return x + self.drop(params["drop"], ops.tanh(y))


class Net(nn.Module):
    """A model with children in a list, a dict and a tuple in it."""

    def __init__(self, width=4, depth=12):
        self.blocks = []
        for _ in range(depth):
            self.blocks.append(Block(width))
        self.heads = {"one": nn.Linear(width, 2), "more": (nn.Linear(width, 3), nn.Linear(3, 2))}

    def __call__(self, params, x):
        for block, own in zip(self.blocks, params["blocks"], strict=True):
            x = block(own, x)
        first, second = self.heads["more"]
        own = params["heads"]["more"]
        return self.heads["one"](params["heads"]["one"], x) + second(own[1], first(own[0], x))


class Given(nn.Module):
    """A model that is given its layers."""

    def __init__(self, layers):
        self.layers = layers


PATHS = {*(f"blocks.{k}" for k in range(12)), "heads.one", "heads.more.0", "heads.more.1"}


def start(be, model=None):
    return duoln.to_tensors((model or Net()).init(0), be)


def x_of(be, rows=5):
    return duoln.tensor(np.random.default_rng(1).standard_normal((rows, 4)).astype(np.float32), be)


def test_parameters_mirror_the_collections():
    params = Net().init(0)
    assert [type(params[key]) for key in ("blocks", "heads")] == [list, dict] and type(params["heads"]["more"]) is tuple
    assert len(params["blocks"]) == 12 and params["heads"]["more"][0]["weight"].shape == (4, 3)
    assert set(Net().children()) == PATHS and {path for path, _ in Net().modules()} > PATHS
    own = Block(4).init(Stream(0, "init").child("blocks").child("10"))
    assert all((a == b).all() for a, b in tree.zipped(params["blocks"][10], own))
    assert (params["blocks"][0]["hidden"]["weight"] != params["blocks"][1]["hidden"]["weight"]).any()


def test_what_a_list_becomes_after_it_was_assigned():
    model = Net(depth=1)
    model.blocks[0] = nn.Linear(4, 5)
    assert list(model.init(0)["blocks"][0]) == ["weight", "bias"]
    assert Net(depth=0).init(0).keys() == {"heads"}


def test_it_trains_as_a_chain_does(be):
    class Listed(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

        def __call__(self, params, x):
            for layer, own in zip(self.layers, params["layers"], strict=True):
                x = ops.tanh(layer(own, x))
            return x

    chain, x = nn.Sequential(nn.Linear(4, 4), ops.tanh, nn.Linear(4, 4), ops.tanh), x_of(be)
    optimizer = optim.AdamW(0.1, weight_decay=0.1, decays=lambda path, p: path.endswith("0.weight"))

    def trained(model, params):
        @duoln.compile
        def step(params, slots, x):
            _, gradients = duoln.value_and_grad(lambda p: ops.mean(ops.square(model(p, x) - 1.0)))(params)
            return optimizer.update(params, gradients, slots, 0.1)

        slots = optimizer.init(params)
        for _ in range(4):
            params, slots = step(params, slots, x)
        return params

    params = start(be, Listed())
    listed, chained = trained(Listed(), params), trained(chain, {"0": params["layers"][0], "2": params["layers"][1]})
    for key, second in enumerate(("0", "2")):
        for name in ("weight", "bias"):
            np.testing.assert_array_equal(listed["layers"][key][name].numpy(), chained[second][name].numpy())


def test_files_keep_lists(tmp_path, numpy_backend):
    params = start(numpy_backend)
    duoln.save(tmp_path / "net.safetensors", params)
    read = duoln.load(tmp_path / "net.safetensors", numpy_backend)
    assert type(read["blocks"]) is list and type(read["heads"]["more"]) is tuple
    with nn.no_dropout():
        np.testing.assert_array_equal(Net()(read, x_of(numpy_backend)).numpy(), Net()(params, x_of(numpy_backend)).numpy())


def test_masks_and_populations_find_their_layers(be):
    model, params, x = Net(), start(be), x_of(be, 64)
    masks = nn.DropoutMasks(model, 0)(0, params, x)
    assert set(masks) == {f"blocks.{k}.drop" for k in range(12)}
    masked = nn.with_masks(params, masks)
    assert masked["blocks"][11]["drop"]["mask"] is masks["blocks.11.drop"] and params["blocks"][11]["drop"] == {}
    assert (model(masked, x).numpy() != model(params, x).numpy()).any()
    fixed = nn.with_population(model, params, [x])
    np.testing.assert_allclose(fixed["blocks"][0]["norm"]["mean"].numpy(), x.numpy().mean(0), atol=1e-6)
    assert model(fixed, x[:1]).shape == (1, 2)
    assert [path for path, _ in tree.items(nn.without_population(model, fixed))] == [path for path, _ in tree.items(params)]
    assert nn.in_16_bits(params)["blocks"][0]["hidden"]["weight"].dtype == "bfloat16"
    check_error(ShapeError, lambda: nn.with_masks(params, {"blocks.12.drop": x}), "[with_masks]", "'12'")


def test_seen_from_outside(numpy_backend):
    model, params, seen = Net(depth=2), start(numpy_backend, Net(depth=2)), []
    with duoln.observed(model, lambda path, layer, output: seen.append(path)):
        model(params, x_of(numpy_backend))
    assert seen[:4] == ["blocks.0.norm", "blocks.0.hidden", "blocks.0.drop", "blocks.0"] and seen[-3:-1] == ["heads.more.0", "heads.more.1"]
    assert repr(Given((nn.Linear(2, 3),))) == "Given(\n  (layers.0): Linear(n_in=2, n_out=3)\n)"
    assert "  (blocks.1): Block(\n    (norm): BatchNorm(width=4)\n" in repr(model) and "  (heads.more.1): Linear(n_in=3, n_out=2)" in repr(model)
    summary = duoln.summary(model, (5, 4))
    assert {row.path: row.parameters for row in summary.rows if row.parameters}["heads.more.0"] == 15 and summary.parameters == sum(a.size for a in tree.leaves(params))
    names = [line.split("  ")[:3] for line in str(summary).splitlines()[2:]]
    assert names[0][0] == "model" and names[1][:2] == ["", "blocks.0"] and names[2] == ["", "", "norm"] and ["", "heads.more.1"] in [each[:2] for each in names]
    assert "\n  blocks.0: Block" in summary.text(20)


def test_a_shared_layer_is_seen_at_the_place_whose_parameters_it_gets(numpy_backend):
    drop, seen = nn.Dropout(0.0), []

    class Twice(nn.Module):
        def __init__(self):
            self.drops = [drop, drop]

        def __call__(self, params, x):
            return self.drops[1](params["drops"][1], x)

    model = Twice()
    with duoln.observed(model, lambda path, layer, output: seen.append(path)):
        model({"drops": [{}, {}]}, x_of(numpy_backend))
    assert seen[0] == "drops.1"


def test_errors_name_an_entry_of_a_list(numpy_backend):
    model, params, x = Net(depth=2), start(numpy_backend, Net(depth=2)), x_of(numpy_backend)
    check_error(ShapeError, lambda: model.heads["one"](params["blocks"], x), "[Linear] expected parameters with 'weight', found 0, 1", "params[0]")


@pytest.mark.peers
def test_pytorch_names_a_list_in_the_same_way(tmp_path, numpy_backend):
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(11)])
            self.heads = torch.nn.ModuleDict({"out": torch.nn.Linear(4, 2)})

    class Ours(nn.Module):
        def __init__(self):
            self.layers, self.heads, self.drops = [nn.Linear(4, 4) for _ in range(11)], {"out": nn.Linear(4, 2)}, (nn.Dropout(),)

    state = Theirs().state_dict()
    safetensors.save_file(state, tmp_path / "theirs.safetensors")
    params = duoln.load_pytorch(tmp_path / "theirs.safetensors", Ours())
    assert [path for path, _ in tree.items(params)] == [path for path, _ in tree.items(Ours().init(0))] and params["drops"] == ({},)
    np.testing.assert_array_equal(params["layers"][10]["weight"], state["layers.10.weight"].numpy().T)
    duoln.save_pytorch(tmp_path / "ours.safetensors", Ours(), params)
    again = safetensors.load_file(tmp_path / "ours.safetensors")
    assert again.keys() == state.keys() and all((again[key] == state[key]).all() for key in state)
