"""Trees of dicts, lists and tuples: how parameters, gradients, optimiser slots and batches are held.

A leaf is anything that is not a dict, list or tuple. Dicts are walked in insertion order, and a path is
written with dots: `hidden.0.gain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from duoln.errors import ShapeError

Tree = Any


def items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs (path, leaf), depth first. A tree that is one leaf has the path ""."""
    if isinstance(tree, dict):
        for key, branch in tree.items():
            yield from items(branch, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, list | tuple):
        for index, branch in enumerate(tree):
            yield from items(branch, f"{prefix}.{index}" if prefix else str(index))
    else:
        yield prefix, tree


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in the order of `items`."""
    return [leaf for _, leaf in items(tree)]


def map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same form with `fn(leaf, *leaves of the others)` at each leaf.

    Raises:
        ShapeError: one of the other trees has another form; the message names the path.
    """
    return _map(fn, "", tree, *others)


def _map(fn: Callable[..., Any], path: str, tree: Tree, *others: Tree) -> Tree:
    if isinstance(tree, dict):
        for other in others:
            if not isinstance(other, dict) or other.keys() != tree.keys():
                raise ShapeError(_differs(path, sorted(map_keys(tree)), sorted(map_keys(other))))
        return {k: _map(fn, f"{path}.{k}" if path else str(k), v, *(o[k] for o in others))
                for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        for other in others:
            if not isinstance(other, list | tuple) or len(other) != len(tree):
                raise ShapeError(_differs(path, f"{len(tree)} entries", _describe(other)))
        return type(tree)(_map(fn, f"{path}.{i}" if path else str(i), v, *(o[i] for o in others))
                          for i, v in enumerate(tree))
    for other in others:
        if isinstance(other, dict | list | tuple):
            raise ShapeError(_differs(path, "a leaf", _describe(other)))
    return fn(tree, *others)


def map_keys(tree: Tree) -> list[str]:
    """The keys of a dict as text; a description in a list for anything else."""
    return [str(k) for k in tree] if isinstance(tree, dict) else [_describe(tree)]


def _describe(tree: Tree) -> str:
    if isinstance(tree, dict | list | tuple):
        return f"{type(tree).__name__} of {len(tree)}"
    return type(tree).__name__


def _differs(path: str, expected: object, found: object) -> str:
    return f"[tree] at '{path or 'the root'}': expected {expected}, found {found}"


def unflatten(tree: Tree, new_leaves: list[Any]) -> Tree:
    """A tree of the form of `tree` whose leaves are taken from `new_leaves` in order.

    Raises:
        ShapeError: the number of leaves differs.
    """
    count = len(leaves(tree))
    if count != len(new_leaves):
        raise ShapeError(f"[tree] expected {count} leaves, found {len(new_leaves)}")
    source = iter(new_leaves)
    return map(lambda _: next(source), tree)
