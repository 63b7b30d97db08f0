"""The parts of a module: what would silently not be trained is refused by name; children that know their parameters; collections of modules."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, tree
from duoln.core.arguments import described
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.randomness import Stream
from duoln.testing import check_error


class Own(nn.Module):
    """A module with the attributes that it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def ones():
    return duoln.tensor(np.ones((2, 2), np.float32), "numpy")


ARRAYS = {"a tensor": lambda: ones(), "a list": lambda: [3, ones()], "a dict": lambda: {"a": {"b": ones()}}, "a tuple": lambda: ([ones()],)}
COLLECTIONS = {"a set": (lambda: {nn.Linear(2, 2)}, "found a set of modules"), "a list with a set": (lambda: [{nn.Linear(2, 2)}], "found a list of modules"),
               "a list with a number": (lambda: [nn.Linear(2, 2), 3], "modules alone in a list of modules, found 3 (int) too"),
               "a list with None": (lambda: [None, nn.Linear(2, 2)], "found None too"), "a tuple with None": (lambda: (nn.Linear(2, 2), None), "found None too"),
               "a dict with a set": (lambda: {"a": {nn.Linear(2, 2)}}, "found a dict of modules"), "a dict with a function": (lambda: {"a": nn.Linear(2, 2), "b": ops.relu}, "dict of modules"),
               "an integer name": (lambda: {0: nn.Linear(2, 2)}, "names of modules, found 0"), "a dot": (lambda: [{"a.b": nn.Linear(2, 2)}], "found 'a.b'")}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_tensor_as_an_attribute_is_refused(name):
    own = Own(w=ARRAYS[name]())
    check_error(UsageError, lambda: own.init(0), "[Own] w: expected no tensor", "never trained", "weights(self, rng)", "NumPy array")
    check_error(UsageError, lambda: nn.Sequential(own).init(0), "[Own] w")


@pytest.mark.parametrize("library", [pytest.param("torch", marks=pytest.mark.peers), "mlx.core"])
def test_an_array_of_another_library_is_refused_as_a_tensor_is(library):
    array = pytest.importorskip(library).ones(2)
    check_error(UsageError, lambda: Own(w=[array]).init(0), "[Own] w: expected no tensor", described(array), "weights(self, rng)", "NumPy array")


def test_an_array_in_place_of_a_tensor_is_told_from_a_parameter():
    own = Own(w=np.ones((2, 2), np.float32))
    check_error(DtypeError, lambda: ones() @ own.w, "[matmul]", "wrap a constant with duoln.tensor(x)", "weights(self, rng)")


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_that_parameters_cannot_mirror_is_refused(name):
    make, words = COLLECTIONS[name]
    check_error(UsageError, lambda: Own(parts=make()).init(0), "[Own] parts: expected", words)
    check_error(UsageError, lambda: nn.Sequential(Own(parts=make())).init(0), "[Own] parts: expected", words)


def test_a_constant_is_an_array():
    assert Own(scale=np.ones(3), names=["a", "b"], table={"k": [1, 2]}).init(0) == {}


def test_a_module_at_two_places_is_refused():
    shared = nn.Linear(2, 2)
    check_error(UsageError, lambda: Own(first=shared, second=shared).init(0), "[Own]", "the same Linear at 'first' and 'second'", "call it twice")
    check_error(UsageError, lambda: nn.Sequential(shared, ops.relu, shared).init(0), "[Sequential]", "at '0' and '2'")
    check_error(UsageError, lambda: Own(a=Own(inside=shared), b=nn.Sequential(shared)).init(0), "at 'a.inside' and 'b.0'")
    norm = nn.RMSNorm(2, affine=False)
    assert Own(a=norm, b=norm, c=nn.Sequential(norm), d=[norm]).init(0) == {"a": {}, "b": {}, "c": {"0": {}}, "d": [{}]}
    check_error(UsageError, lambda: Own(a=[shared, shared]).init(0), "[Own]", "the same Linear at 'a.0' and 'a.1'")
    check_error(UsageError, lambda: Own(a=[shared], b={"c": (shared,)}).init(0), "at 'a.0' and 'b.c.0'")


def test_a_module_inside_itself_is_refused():
    parent = Own(child=Own())
    parent.child.parent = parent
    check_error(UsageError, lambda: parent.init(0), "[Own]", "at 'child.parent' the module that it is in")


@pytest.mark.parametrize("name", ["init", "weights", "children", "adapted", "modules", "bind", "gathers"])
def test_a_name_of_the_base_is_refused(name):
    check_error(UsageError, lambda: Own(**{name: nn.Linear(2, 2)}), f"[Own] {name}: expected another name", f"{name}_layer")
    assert list(nn.Sequential(**{name: nn.Linear(2, 2)}).init(0)) == [name]


def test_a_module_of_the_class_is_refused():
    for value in (nn.Linear(2, 2), ones(), [nn.Linear(2, 2)], {"a": (ones(),)}):
        check_error(UsageError, lambda v=value: type("Shares", (nn.Module,), {"layer": v}), "[Shares] layer", "made in __init__")


def test_a_child_with_a_name_that_is_taken_or_has_a_dot_is_refused():
    class Both(Own):
        def weights(self, rng):
            return {"bias": np.ones(2, np.float32)}

    check_error(UsageError, lambda: Both(bias=nn.Linear(2, 2)).init(0), "[Both]", "'bias'", "arrays")
    check_error(UsageError, lambda: Both(bias=[nn.Linear(2, 2)]).init(0), "[Both]", "'bias.0'", "arrays")
    check_error(UsageError, lambda: nn.Sequential(**{"a.b": nn.Linear(2, 2)}).init(0), "[Sequential]", "'a.b'", "a dot")

    class Dotted(Own):
        def weights(self, rng):
            return {"a.weight": np.ones(2, np.float32)}

    class Gaussian(Own):
        def weights(self, rng):
            return {"mean": np.ones(2, np.float32)}

    check_error(UsageError, lambda: Gaussian().init(0), "[Gaussian] expected another name for an array, found 'mean'", "no optimizer changes")
    assert list(Own(mean=nn.Linear(2, 2)).init(0)) == ["mean"]
    check_error(UsageError, lambda: Dotted(a=nn.Linear(2, 2)).init(0), "[Dotted] expected another name for an array, found 'a.weight', a dot")


def test_layers_of_a_sequential_have_any_name_and_are_given_one_by_one():
    names = ["self", "layers", "params", "keys"]
    model = nn.Sequential(**{name: nn.Linear(2, 2) for name in names})
    assert list(model.init(0)) == names and model(duoln.to_tensors(model.init(0), "numpy"), ones()).shape == (2, 2)
    for given, advice in (({"a": nn.ReLU()}, "nn.Sequential(**layers)"), (("a", nn.ReLU()), "nn.Sequential(a=...)"), ([nn.ReLU()], "nn.Sequential(*layers)")):
        check_error(UsageError, lambda given=given: nn.Sequential(given), "[Sequential] layer 0", f"found {type(given).__name__}", advice)


def test_names_of_positions_are_not_given_again():
    blocks = {str(k): nn.Linear(3, 3) for k in range(2)}
    check_error(UsageError, lambda: nn.Sequential(nn.Linear(2, 3), ops.relu, **blocks), "[Sequential]", "those of the positions, 0, 1", "second layer '0'")
    assert list(nn.Sequential(**blocks).init(0)) == ["0", "1"] and len(nn.Sequential(nn.Linear(2, 3), **{"1": ops.relu})) == 2


BASES = {"Sequential": lambda: (nn.Sequential, (nn.Linear(2, 3), nn.ReLU())), "LSTM": lambda: (nn.LSTM, (2, 3)), "MultiHeadAttention": lambda:
         (nn.MultiHeadAttention, (2, 1)), "WeightNorm": lambda: (nn.WeightNorm, (nn.Linear(2, 3),)), "BatchNorm": lambda: (nn.BatchNorm, (2,))}


@pytest.mark.parametrize("base", BASES)
def test_the_children_of_a_subclass_stand_beside_those_of_its_base(base):
    kind, args = BASES[base]()

    class WithHead(kind):
        def __init__(self):
            super().__init__(*args)
            self.head, self.drops = nn.Linear(3, 2), [nn.Dropout(0.5)]

    plain, params = kind(*args).init(0), WithHead().init(0)
    assert params.keys() == plain.keys() | {"head", "drops"} and params["head"]["weight"].shape == (3, 2)
    assert list(nn.DropoutMasks(WithHead(), 0).layers) == ["drops.0"] and "(head): Linear" in repr(WithHead())


def test_an_attribute_that_is_a_layer_already_has_no_second_place():
    class Net(nn.Sequential):
        def __init__(self, **named):
            self.first, self.head = nn.Linear(2, 3), nn.Linear(3, 2)
            super().__init__(self.first, nn.ReLU(), **named)

    assert list(Net().init(0)) == ["0", "1", "head"]
    check_error(UsageError, lambda: Net(head=nn.Linear(3, 3)).init(0), "[Net] head: expected another name", "one of its 3 layers")

    class Listed(nn.Sequential):
        def __init__(self):
            self.head = [nn.Linear(3, 2)]
            super().__init__(head=nn.Linear(3, 3))

    check_error(UsageError, lambda: Listed().init(0), "[Listed] head: expected another name")


def test_an_argument_where_a_layer_has_none():
    check_error(TypeError, lambda: nn.ReLU(inplace=True), "inplace")
    check_error(TypeError, lambda: nn.Flatten(1))


def test_settings_that_pytorch_has_in_another_order_go_by_name():
    options = {"shared=": lambda: nn.Dropout(0.5, True), "eps=, unbiased=, gain= by name": lambda: nn.BatchNorm(8, 1e-5), "padding_idx=": lambda: nn.Embedding(8, 3, 0),
               "bias=, weight_init=, activation=": lambda: nn.Linear(2, 3, False), "stride=, padding=": lambda: nn.Conv2d(2, 3, 2, 1), "stride=": lambda: nn.Conv1d(2, 3, 2, 1)}
    for names, layer in options.items():
        check_error(TypeError, layer, "__init__() takes", names)
    for layer in (lambda: nn.LayerNorm(8, 1e-5), lambda: nn.RMSNorm(8, 1e-5), lambda: nn.GroupNorm(2, 8, 1e-5), lambda: nn.InstanceNorm(8, 1e-5)):
        check_error(TypeError, layer, "; eps=, gain=", "by name")
    with pytest.raises(TypeError) as caught:
        ops.relu(ones(), ones())
    assert "by name" not in str(caught.value)


# Parameters as tensors ----------------------------------------------------------------------------------------

def test_init_gives_the_modules_arrays_as_tensors(be):
    model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4))
    for seed in (7, duoln.randomness.Stream(7, "init")):
        for (path, ours), theirs in zip(tree.items(duoln.init(model, seed, be)), tree.leaves(model.init(7)), strict=True):
            assert ours.backend is be, path
            np.testing.assert_array_equal(ours.numpy(), theirs)
    if "float64" in be.dtypes:
        assert duoln.init(nn.Linear(2, 3), 0, be, "float64")["weight"].dtype == "float64"


def test_wrong_inits_are_told(numpy_backend):
    check_error(DtypeError, lambda: duoln.init({"w": 1.0}, 0, numpy_backend), "[init] model", "dict")
    check_error(DtypeError, lambda: duoln.init(nn.Linear(2, 3), None, numpy_backend), "[Linear] rng", "seed")
    check_error(TypeError, lambda: duoln.init(nn.Linear(2, 3)), "seed")
    check_error(DtypeError, lambda: duoln.init(nn.Linear(2, 3), 0, 3), "backend", "3")


class Block(nn.Module):
    """Two layers, and a method that takes parameters."""

    def __init__(self, width):
        self.hidden, self.norm, self.width, self.gain = nn.Linear(width, width), nn.LayerNorm(width), width, 3.0

    def weights(self, rng):
        return {"gain": np.full(self.width, 2.0, np.float32)}

    def __call__(self, params, x, residual=None):
        m = self.bind(params)
        y, total = m.norm.of_sum(m.hidden(x), x if residual is None else residual)
        return m.scaled(y) + total

    def scaled(self, params, y):
        return y * params["gain"]

    def doubled(self, y):
        return y + y


class Net(nn.Module):
    """The same module with and without `bind`."""

    def __init__(self, bound, width=4):
        self.table, self.block, self.blocks = nn.Embedding(5, width), Block(width), [Block(width), Block(width)]
        self.named, self.bound, self.func, self.args = {"a": [nn.Linear(width, 3)]}, bound, nn.Tanh(), nn.LayerNorm(width)

    def __call__(self, params, ids):
        return (self.with_bind if self.bound else self.without)(params, ids)

    def with_bind(self, params, ids):
        m = self.bind(params)
        x = m.table(ids)
        x = m.args(m.func(m.block(x, residual=x)))
        for block in m.blocks:
            x = block(x) + block.hidden(x) * block.gain
        return m.named["a"][0](x), m.table.as_linear(x), m.block.hidden(x), m.blocks[1].doubled(x)

    def without(self, params, ids):
        x = self.table(params["table"], ids)
        x = self.args(params["args"], self.func(params["func"], self.block(params["block"], x, residual=x)))
        for block, own in zip(self.blocks, params["blocks"], strict=True):
            x = block(own, x) + block.hidden(own["hidden"], x) * own["gain"]
        return (self.named["a"][0](params["named"]["a"][0], x), self.table.as_linear(params["table"], x),
                self.block.hidden(params["block"]["hidden"], x), x + x)


def test_it_computes_what_explicit_calls_do(be):
    params, ids = duoln.to_tensors(Net(True).init(0), be), duoln.tensor([[1, 4, 0]], be, "int32")
    for with_bind, without in zip(Net(True)(params, ids), Net(False)(params, ids), strict=True):
        np.testing.assert_array_equal(with_bind.numpy(), without.numpy())

    def gradient(model):
        return duoln.compile(lambda p, ids: duoln.value_and_grad(lambda q: sum(ops.sum(ops.square(y)) for y in model(q, ids)))(p)[1])

    of_bound, of_explicit = gradient(Net(True)), gradient(Net(False))
    for _ in range(2):
        for mine, second in duoln.tree.zipped(of_bound(params, ids), of_explicit(params, ids)):
            np.testing.assert_array_equal(mine.numpy(), second.numpy())


def test_arrays_come_before_settings_of_the_same_name(numpy_backend):
    block = Block(4)
    params = duoln.to_tensors(block.init(0), numpy_backend)
    m = block.bind(params)
    assert m.gain is params["gain"] and m.width == 4 and m.norm.eps == 1e-5 and m.norm.gain is params["norm"]["gain"]
    assert repr(m) == repr(block) and m.children() == block.children()


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda block, params, x: block.bind({"gain": params["gain"]}).hidden(x), ShapeError, ["[Block] expected parameters with 'hidden', found gain"]),
    (lambda block, params, x: block.bind({}).norm(x), ShapeError, ["[Block] expected parameters with 'norm', found none"]),
    (lambda block, params, x: block.bind(params["hidden"]).norm(x), ShapeError, ["[Block] expected parameters with 'norm', found bias, weight"]),
    (lambda block, params, x: block.bind({**params, "hidden": {}}).hidden(x), ShapeError, ["[Linear] expected parameters with 'weight'"]),
    (lambda block, params, x: block.bind(params).hiden(x), AttributeError, ["'Block' object has no attribute 'hiden'; its parameters are gain, hidden, norm"]),
    (lambda block, params, x: block.bind(params).forward(x), AttributeError, ["__call__(self, params, x)"]),
    (lambda block, params, x: Net(True).bind({"blocks": [params]}).blocks, ShapeError, ["[Net] expected parameters with '1', found 0"]),
    (lambda block, params, x: Net(True).bind({"named": {"b": [params]}}).named, ShapeError, ["[Net] expected parameters with 'a', found b"])])
def test_errors_are_those_of_explicit_calls(call, kind, words, numpy_backend):
    params, x = duoln.to_tensors(Block(4).init(0), numpy_backend), duoln.tensor(np.ones((2, 4), np.float32), numpy_backend)
    check_error(kind, lambda: call(Block(4), params, x), *words)


class Residual(nn.Module):
    """Two layers."""

    def __init__(self, width):
        self.norm, self.hidden, self.drop = nn.BatchNorm(width), nn.Linear(width, width), nn.Dropout(0.5)

    def __call__(self, params, x):
        y = self.hidden(params["hidden"], self.norm(params["norm"], x))
        return x + self.drop(params["drop"], ops.tanh(y))


class Deep(nn.Module):
    """A model with children in a list, a dict and a tuple in it."""

    def __init__(self, width=4, depth=12):
        self.blocks = []
        for _ in range(depth):
            self.blocks.append(Residual(width))
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
    return duoln.to_tensors((model or Deep()).init(0), be)


def x_of(be, rows=5):
    return duoln.tensor(np.random.default_rng(1).standard_normal((rows, 4)).astype(np.float32), be)


def test_parameters_mirror_the_collections():
    params = Deep().init(0)
    assert [type(params[key]) for key in ("blocks", "heads")] == [list, dict] and type(params["heads"]["more"]) is tuple
    assert len(params["blocks"]) == 12 and params["heads"]["more"][0]["weight"].shape == (4, 3)
    assert set(Deep().children()) == PATHS and {path for path, _ in Deep().modules()} > PATHS
    own = Residual(4).init(Stream(0, "init").child("blocks").child("10"))
    assert all((a == b).all() for a, b in tree.zipped(params["blocks"][10], own))
    assert (params["blocks"][0]["hidden"]["weight"] != params["blocks"][1]["hidden"]["weight"]).any()


def test_masks_and_populations_find_their_layers(be):
    model, params, x = Deep(), start(be), x_of(be, 64)
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
    model, params, seen = Deep(depth=2), start(numpy_backend, Deep(depth=2)), []
    with duoln.observed(model, lambda path, layer, output: seen.append(path)):
        model(params, x_of(numpy_backend))
    assert seen[:4] == ["blocks.0.norm", "blocks.0.hidden", "blocks.0.drop", "blocks.0"] and seen[-3:-1] == ["heads.more.0", "heads.more.1"]
    assert repr(Given((nn.Linear(2, 3),))) == "Given(\n  (layers.0): Linear(n_in=2, n_out=3)\n)"
    assert "  (blocks.1): Residual(\n    (norm): BatchNorm(width=4)\n" in repr(model) and "  (heads.more.1): Linear(n_in=3, n_out=2)" in repr(model)
    summary = duoln.summary(model, (5, 4))
    assert {row.path: row.parameters for row in summary.rows if row.parameters}["heads.more.0"] == 15 and summary.parameters == sum(a.size for a in tree.leaves(params))
    names = [line.split("  ")[:3] for line in str(summary).splitlines()[2:]]
    assert names[0][0] == "model" and names[1][:2] == ["", "blocks.0"] and names[2] == ["", "", "norm"] and ["", "heads.more.1"] in [each[:2] for each in names]


def test_errors_name_an_entry_of_a_list(numpy_backend):
    model, params, x = Deep(depth=2), start(numpy_backend, Deep(depth=2)), x_of(numpy_backend)
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
