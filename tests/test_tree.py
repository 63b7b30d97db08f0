"""Trees: order, paths, and errors that name the path."""

import copy
import pickle
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import ops, optim, tree
from duoln.errors import CompileError, DtypeError, ShapeError
from duoln.testing import check_error

TREE = {"a": [1, (2, 3)], "b": {"c": 4, "empty": {}}}


def test_leaves_and_paths_in_order():
    assert list(tree.items(TREE)) == [("a.0", 1), ("a.1.0", 2), ("a.1.1", 3), ("b.c", 4)]
    assert tree.leaves(TREE) == [1, 2, 3, 4]
    assert list(tree.items(5)) == [("", 5)] and tree.leaves({}) == []


def test_map_keeps_the_form():
    assert tree.map(lambda x: -x, TREE) == {"a": [-1, (-2, -3)], "b": {"c": -4, "empty": {}}}
    assert tree.map(lambda x, y: x + y, TREE, TREE)["a"] == [2, (4, 6)]


def test_unflatten_is_the_inverse_of_leaves():
    assert tree.unflatten(TREE, tree.leaves(TREE)) == TREE
    for wrong in ([1, 2, 3], [1, 2, 3, 4, 5]):
        check_error(ShapeError, lambda w=wrong: tree.unflatten(TREE, w), "expected 4 leaves", f"found {len(wrong)}")


@pytest.mark.parametrize(("second", "words"), [
    ({"a": [1, (2, 3)], "b": {"c": 4}}, ("'b'", "c, empty")), ({"a": [1], "b": {"c": 4, "empty": {}}}, ("'a'", "2 entries")),
    ({"a": [1, (2, [3])], "b": {"c": 4, "empty": {}}}, ("'a.1.1'", "a leaf")), (7, ("root", "int")),
    ({"a": {"0": 1}, "b": {"c": 4, "empty": {}}}, ("'a'", "2 entries", "keys 0")),
])
def test_other_forms_are_refused_with_the_path(second, words):
    check_error(ShapeError, lambda: tree.map(lambda x, y: x, TREE, second), *words)


def test_none_is_an_empty_branch(be):
    part = {"a": [1, None], "b": None}
    assert tree.leaves(part) == [1] and list(tree.items(part)) == [("a.0", 1)] and tree.leaves(None) == []
    assert tree.map(lambda x: -x, part) == {"a": [-1, None], "b": None} and tree.map(lambda x: x, None) is None
    assert tree.map(lambda x, y: x + y, part, part) == {"a": [2, None], "b": None}
    for second, words in (({"a": [1, 2], "b": None}, "int"), ({"a": [1, None], "b": {}}, "an empty dict")):
        check_error(ShapeError, lambda s=second: tree.map(lambda x, y: x, part, s), "expected None", words)
    check_error(ShapeError, lambda: tree.map(lambda x, y: x, {"a": 1}, {"a": None}), "'a'", "found None")
    x = duoln.tensor([1.0, 2.0], be)
    value, gradients = duoln.value_and_grad(lambda p: ops.sum(p["x"] ** 2))({"x": x, "none": None})
    assert value.item() == 5.0 and gradients["none"] is None and gradients["x"].tolist() == [2.0, 4.0]
    step = duoln.compile(lambda x, states=None: (x * 2.0, states, None))
    for _ in range(4):
        assert step(x)[0].tolist() == [2.0, 4.0] and step(x, None)[1:] == (None, None)
        assert step(x, {"h": x, "c": None})[1]["c"] is None
    back = duoln.vjp(lambda p: {"y": p["x"] * 2.0, "z": p["x"]}, {"x": x, "none": None})[1]
    assert back({"y": x, "z": None})[0]["x"].tolist() == [2.0, 4.0]
    check_error(ShapeError, lambda: back({"y": x}), "keys y, z", "keys y")


def test_partition_and_combine():
    odd, even = tree.partition(TREE, lambda path, x: x % 2)
    assert odd == {"a": [1, (None, 3)], "b": {"c": None, "empty": {}}} and even == {"a": [None, (2, None)], "b": {"c": 4, "empty": {}}}
    assert tree.combine(odd, even) == tree.combine(even, odd) == TREE and tree.combine(None, TREE) == TREE and tree.combine(None) is None
    below, _ = tree.partition(TREE, lambda path, x: path.startswith("a.1"))
    assert tree.leaves(below) == [2, 3] and tree.combine({"a": None, "b": 2}, {"a": [1], "b": None}) == {"a": [1], "b": 2}
    check_error(ShapeError, lambda: tree.combine(TREE, {"a": [1, (None, None)], "b": None}), "'a.0'", "None beside a leaf")
    check_error(ShapeError, lambda: tree.combine({"a": 1}, {"b": 1}), "keys a", "keys b")
    check_error(ShapeError, lambda: tree.combine({"a": [1]}, {"a": [None, 2]}), "'a'", "1 entries", "2 entries")
    check_error(DtypeError, lambda: tree.partition(TREE, "a"), "keep")
    check_error(ShapeError, tree.combine, "found none")


def test_zipped_goes_by_path():
    turned = {"b": {"empty": {}, "c": 40}, "a": [10, (20, 30)]}
    assert tree.zipped(TREE, turned) == [(1, 10), (2, 20), (3, 30), (4, 40)] and tree.zipped({}, {}) == []
    check_error(ShapeError, lambda: tree.zipped(TREE, {"a": 1}), "root")


class Pair(NamedTuple):
    weight: Any
    bias: Any


@dataclass
class Record:
    weight: Any


@ON_NUMPY
def test_named_tuples_are_trees(be, tmp_path):
    pair = Pair(np.float32([1, 2]), {"b": np.float32([3])})
    assert list(tree.items(pair)) == [("0", pair.weight), ("1.b", pair.bias["b"])]
    params, optimizer = duoln.to_tensors({"layer": pair}, be), optim.SGD(0.1, momentum=0.5, clip=optim.clip_value(1.0))
    step = duoln.compile(duoln.value_and_grad(lambda p, x: ops.sum(p["layer"].weight * x) + ops.sum(p["layer"].bias["b"] * 2.0)))
    for _ in range(4):
        value, gradients = step(params, duoln.tensor([5.0, 6.0], be))
        assert value.item() == 23.0 and gradients["layer"].weight.tolist() == [5.0, 6.0]
    new, _ = optimizer.update(params, gradients, optimizer.init(params), 0.1)
    assert isinstance(params["layer"], Pair) and isinstance(new["layer"], Pair) and new["layer"].bias["b"].item() == pytest.approx(2.9)
    duoln.save(tmp_path / "p.safetensors", params)
    assert duoln.load(tmp_path / "p.safetensors")["layer"][1]["b"].tolist() == [3.0]


class ByAttribute(dict):
    """Its keys are attributes, too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class OwnAttributes(dict):
    def __init__(self, *args, **entries):
        super().__init__(*args, **entries)
        self.__dict__ = self


class Layers(list):
    pass


CLASSES = [OrderedDict, ByAttribute, OwnAttributes, lambda entries: defaultdict(list, entries)]


@pytest.mark.parametrize("kind", CLASSES, ids=["OrderedDict", "by attribute", "own attributes", "defaultdict"])
def test_a_tree_keeps_its_classes(be, kind, tmp_path):
    start = kind({"a": kind({"w": np.float32([1, 2])}), "b": Layers([np.float32([3])])})
    classes = type(start), type(start["a"]), Layers
    params = duoln.to_tensors(start, be)

    def loss(params, x):
        assert (type(params), type(params["a"]), type(params["b"])) == classes
        w = params.a.w if isinstance(params, ByAttribute | OwnAttributes) else params["a"]["w"]
        more = params["more"] if isinstance(params, defaultdict) else []
        return ops.sum(w * w * x) + ops.sum(params["b"][0]) + len(more)

    optimizer = optim.Adam(0.1)

    def step(params, slots, x):
        value, gradients = duoln.value_and_grad(loss)(params, x)
        return value, gradients, *optimizer.update(params, gradients, slots, x[0])

    def again(tensors):
        return tensors if be.name == "cupy" else pickle.loads(pickle.dumps(tensors))  # the stand-in has no module

    slots, x = optimizer.init(params), duoln.tensor([5.0, 6.0], be)
    for run in (step, *[duoln.compile(step)] * 4):
        value, gradients, new, moments = run(params, slots, x)
        assert value.item() == 32.0 and gradients["a"]["w"].numpy().tolist() == [10.0, 24.0]
        for made in (gradients, new, moments["m"], slots["v"], copy.deepcopy(new), again(new),
                     tree.map(lambda x, y: x, params, {"b": [0], "a": {"w": 0}})):
            assert (type(made), type(made["a"]), type(made["b"])) == classes
    duoln.save(tmp_path / "p.safetensors", params)
    assert [type(branch) for branch in duoln.load(tmp_path / "p.safetensors").values()] == [dict, list]


def test_classes_are_forms_of_their_own(be):
    x = duoln.tensor([1.0], be)
    step = duoln.compile(lambda p: {"kind": p["x"] * (2.0 if type(p) is dict else 3.0)})
    for _ in range(4):
        assert step({"x": x})["kind"].item() == 2.0 and step(OrderedDict(x=x))["kind"].item() == 3.0


def test_tensors_of_a_generator_are_given_one_by_one(be):
    x = duoln.tensor([1.0], be)
    for function, given in ((ops.stack, (x for _ in range(2))), (ops.concat, {"a": x}.values()), (ops.stack, map(ops.exp, [x]))):
        check_error(DtypeError, lambda f=function, g=given: f(g), "one by one", f"{function.__name__}(*list(x))")
    check_error(DtypeError, lambda: duoln.tensor((v for v in (1.0, 2.0)), be), "generator", "list(x)")


class Fixed(dict):
    def __init__(self, w):
        super().__init__(w=w)


class Doubling(list):
    def __init__(self, entries):
        super().__init__([*entries, *entries])


@pytest.mark.parametrize(("wrong", "base"), [(Fixed(1.0), "dict"), (Doubling([1.0]), "list")])
def test_a_class_that_does_not_make_itself_of_entries(wrong, base):
    for again in (lambda: tree.map(lambda x: x, wrong), lambda: tree.map(lambda x, y: x, {"a": wrong}, {"a": wrong}),
                  lambda: tree.unflatten(wrong, tree.leaves(wrong))):
        check_error(DtypeError, again, f"{type(wrong).__name__}({base}(x))", f"give {base}(x)")


@pytest.mark.parametrize(("wrong", "remedy"), [
    (MappingProxyType({}), "dict(x)"), (iter(()), "list(x)"), ({}.values(), "list(x)"), ({1.0}, "list(x)"), (UserDict(a=1), "dict(x)"),
    (Record(1.0), "vars(x)")])
def test_other_containers_are_told_what_a_tree_is(be, wrong, remedy):
    x = duoln.tensor([1.0], be)
    check_error(DtypeError, lambda: duoln.value_and_grad(lambda p: ops.sum(x))({"a": wrong}), "'a'", remedy)
    check_error(CompileError, lambda: duoln.compile(lambda x, p: x)(x, wrong), "'p'", remedy)
    if not isinstance(wrong, Record):
        check_error(DtypeError, lambda: duoln.tensor(wrong, be), "[tensor]", remedy)
