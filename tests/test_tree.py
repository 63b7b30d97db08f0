"""Trees: order, paths, and errors that name the path."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

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


def test_named_tuples_are_trees(be, tmp_path):
    pair = Pair(np.float32([1, 2]), {"b": np.float32([3])})
    assert list(tree.items(pair)) == [("0", pair.weight), ("1.b", pair.bias["b"])]
    params = duoln.to_tensors({"layer": pair}, be)
    assert isinstance(params["layer"], Pair)

    def loss(params, x):
        return ops.sum(params["layer"].weight * x) + ops.sum(params["layer"].bias["b"] * 2.0)

    step = duoln.compile(duoln.value_and_grad(loss))
    x = duoln.tensor([5.0, 6.0], be)
    for _ in range(4):
        value, gradients = step(params, x)
        assert value.item() == 23.0 and gradients["layer"].weight.numpy().tolist() == [5.0, 6.0]
    for optimizer in (optim.Adam(0.1), optim.SGD(0.1, momentum=0.5, clip=optim.clip_value(1.0))):
        new, _ = optimizer.update(params, gradients, optimizer.init(params), 0.1)
        assert isinstance(new["layer"], Pair) and new["layer"].bias["b"].item() == pytest.approx(2.9)
    duoln.save(tmp_path / "p.safetensors", params)
    assert duoln.load(tmp_path / "p.safetensors")["layer"][1]["b"].tolist() == [3.0]


CALLS_WITH_RECORDS = {
    "init": (DtypeError, lambda record: optim.Adam(0.1).init(record)),
    "value_and_grad": (DtypeError, lambda record: duoln.value_and_grad(lambda p: ops.sum(p.weight))(record)),
    "compile": (CompileError, lambda record: duoln.compile(lambda p, x: x)(record, record.weight)),
}


@pytest.mark.parametrize("name", CALLS_WITH_RECORDS)
def test_a_dataclass_is_told_what_a_tree_is(be, name):
    kind, call = CALLS_WITH_RECORDS[name]
    check_error(kind, lambda: call(Record(duoln.tensor([1.0], be))), "Record", "vars(x)")
