"""The parts of a module: what would silently not be trained, or be trained twice, is refused by name."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.core.arguments import described
from duoln.errors import DtypeError, UsageError
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


@pytest.mark.parametrize("thing", [nn.Linear(2, 2), optim.Adam(1e-3), ones(), duoln, nn, ops, optim], ids=lambda thing: type(thing).__name__)
def test_dir_names_only_what_is_there(thing):
    assert [name for name in dir(thing) if not hasattr(thing, name)] == []


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
