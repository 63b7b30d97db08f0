"""The parts of a module: what would silently not be trained, or be trained twice, is refused by name."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim
from duoln.errors import UsageError
from duoln.testing import check_error


class Own(nn.Module):
    """A module with the attributes that it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def ones():
    return duoln.tensor(np.ones((2, 2), np.float32), "numpy")


ARRAYS = {"a tensor": lambda: ones(), "a list": lambda: [3, ones()], "a dict": lambda: {"a": {"b": ones()}}, "a tuple": lambda: ([ones()],)}
COLLECTIONS = {"a list": lambda: [nn.Linear(2, 2)], "a list of lists": lambda: [[nn.Linear(2, 2)]], "a dict": lambda: {"a": (nn.Linear(2, 2),)},
               "a set": lambda: {nn.Linear(2, 2)}}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_tensor_as_an_attribute_is_refused(name):
    own = Own(w=ARRAYS[name]())
    check_error(UsageError, lambda: own.init(0), "[Own] w: expected no tensor", "never trained", "weights(self, rng)", "NumPy array")
    check_error(UsageError, lambda: nn.Sequential(own).init(0), "[Own] w")


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_of_modules_is_refused(name):
    check_error(UsageError, lambda: Own(parts=COLLECTIONS[name]()).init(0), "[Own] parts: expected a module", "nn.Sequential")


def test_a_constant_is_an_array():
    assert Own(scale=np.ones(3), names=["a", "b"], table={"k": [1, 2]}).init(0) == {}


def test_a_module_at_two_places_is_refused():
    shared = nn.Linear(2, 2)
    check_error(UsageError, lambda: Own(first=shared, second=shared).init(0), "[Own]", "the same Linear at 'first' and 'second'", "call it twice")
    check_error(UsageError, lambda: nn.Sequential(shared, ops.relu, shared).init(0), "[Sequential]", "at '0' and '2'")
    check_error(UsageError, lambda: Own(a=Own(inside=shared), b=nn.Sequential(shared)).init(0), "at 'a.inside' and 'b.0'")
    norm = nn.RMSNorm(2, affine=False)
    assert Own(a=norm, b=norm, c=nn.Sequential(norm)).init(0) == {"a": {}, "b": {}, "c": {"0": {}}}


def test_a_module_inside_itself_is_refused():
    parent = Own(child=Own())
    parent.child.parent = parent
    check_error(UsageError, lambda: parent.init(0), "[Own]", "at 'child.parent' the module that it is in")


@pytest.mark.parametrize("name", ["init", "weights", "children", "adapted", "modules", "gathers"])
def test_a_name_of_the_base_is_refused(name):
    check_error(UsageError, lambda: Own(**{name: nn.Linear(2, 2)}), f"[Own] {name}: expected another name", f"{name}_layer")
    assert list(nn.Sequential(**{name: nn.Linear(2, 2)}).init(0)) == [name]


def test_a_module_of_the_class_is_refused():
    for value in (nn.Linear(2, 2), ones()):
        check_error(UsageError, lambda v=value: type("Shares", (nn.Module,), {"layer": v}), "[Shares] layer", "made in __init__")


def test_a_child_with_a_name_that_is_taken_or_has_a_dot_is_refused():
    class Both(Own):
        def weights(self, rng):
            return {"bias": np.ones(2, np.float32)}

    check_error(UsageError, lambda: Both(bias=nn.Linear(2, 2)).init(0), "[Both]", "'bias'", "arrays")
    check_error(UsageError, lambda: nn.Sequential(**{"a.b": nn.Linear(2, 2)}).init(0), "[Sequential]", "'a.b'", "a dot")


@pytest.mark.parametrize("thing", [nn.Linear(2, 2), optim.Adam(1e-3), ones(), duoln, nn, ops, optim], ids=lambda thing: type(thing).__name__)
def test_dir_names_only_what_is_there(thing):
    assert [name for name in dir(thing) if not hasattr(thing, name)] == []
