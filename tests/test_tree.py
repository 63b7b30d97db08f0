"""Trees: order, paths, and errors that name the path."""

import pytest

from duoln import tree
from duoln.errors import ShapeError
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
