"""Trees of dicts, lists and tuples, named ones too. Parameters, gradients, slots and batches are such trees.

A leaf is anything that is not a dict, list or tuple. None is an empty branch: it has no leaves. Dicts are walked in
insertion order, and a path is written with dots: `hidden.0.gain`. Several trees are matched by path, never by order. A
new tree has the classes of the first one: an OrderedDict, a defaultdict, or another class that makes itself of a dict
or list of its entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from duoln.errors import DtypeError, ShapeError

__all__ = ["combine", "items", "leaves", "map", "partition", "unflatten", "zipped"]

Tree = Any

_SEQUENCES = list, tuple  # a union would be made anew at every leaf
_BRANCHES = dict, list, tuple


def items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs (path, leaf), depth first. A tree that is one leaf has the path ""."""
    if isinstance(tree, dict):
        for key, branch in tree.items():
            yield from items(branch, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, _SEQUENCES):
        for index, branch in enumerate(tree):
            yield from items(branch, f"{prefix}.{index}" if prefix else str(index))
    elif tree is not None:
        yield prefix, tree


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in the order of `items`."""
    if not isinstance(tree, _BRANCHES):
        return [] if tree is None else [tree]
    gathered: list[Any] = []
    _collect(tree, gathered)
    return gathered


def _collect(tree: Tree, gathered: list[Any]) -> None:
    # Here and below a leaf has no call of its own, because that would double the time.
    for branch in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(branch, _BRANCHES):
            _collect(branch, gathered)
        elif branch is not None:
            gathered.append(branch)


def map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same form with `fn(leaf, *leaves of the others)` at each leaf.

    Raises:
        DtypeError: `fn` is not a function, or a branch has a class that its entries alone do not make.
        ShapeError: one of the other trees has another form; the message names the path.
    """
    if not callable(fn):
        raise DtypeError(f"[tree] expected tree.map(fn, tree, ...) with a function first, found {type(fn).__name__}")
    if others:
        return _map(fn, (), tree, *others)
    return _map_one(fn, [tree])[0]


def _map_one(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return _rebuild(tree, {key: _map_one(fn, branch) if isinstance(branch, _BRANCHES) else
                            None if branch is None else fn(branch) for key, branch in tree.items()})
    return _rebuild(tree, [_map_one(fn, branch) if isinstance(branch, _BRANCHES) else
                        None if branch is None else fn(branch) for branch in tree])


def _rebuild(tree: Tree, entries: Any) -> Tree:
    """A tree of the class of `tree`, with its attributes, and other entries: a dict or a list of them.

    Raises:
        DtypeError: the class makes no tree of these entries alone.
    """
    kind = type(tree)
    if kind is type(entries):
        return entries
    if kind is tuple:
        return tuple(entries)
    try:
        made = kind._make(entries) if hasattr(kind, "_make") else \
            kind(tree.default_factory, entries) if isinstance(tree, defaultdict) else kind(entries)
        attributes = vars(tree) if hasattr(tree, "__dict__") else tree
        if attributes is not tree:  # a dict may be its own attributes
            vars(made).update(attributes)
    except Exception as error:
        raise _no_tree(kind) from error
    given = entries.items() if isinstance(entries, dict) else enumerate(entries)
    if len(made) != len(entries) or any(made[key] is not entry for key, entry in given):
        raise _no_tree(kind)
    return made


def _no_tree(kind: type) -> DtypeError:
    base = next(base.__name__ for base in _BRANCHES if issubclass(kind, base))
    return DtypeError(f"[tree] expected {base}s, or a class that makes one of its entries alone, as in "
                      f"{kind.__name__}({base}(x)); found {kind.__name__}; give {base}(x)")


def _map(fn: Callable[..., Any], path: tuple[Any, ...], tree: Tree, *others: Tree) -> Tree:
    if isinstance(tree, dict):
        for second in others:
            if not isinstance(second, dict) or second.keys() != tree.keys():
                raise _mismatch_error(path, _keys(tree), second)
        return _rebuild(tree, {k: _map(fn, (*path, k), v, *(o[k] for o in others)) for k, v in tree.items()})
    if isinstance(tree, _SEQUENCES):
        for second in others:
            if not isinstance(second, _SEQUENCES) or len(second) != len(tree):
                raise _mismatch_error(path, f"{len(tree)} entries", second)
        return _rebuild(tree, [_map(fn, (*path, i), v, *(o[i] for o in others)) for i, v in enumerate(tree)])
    for second in others:
        if isinstance(second, _BRANCHES) or (second is None) is not (tree is None):
            raise _mismatch_error(path, "None" if tree is None else "a leaf", second)
    return None if tree is None else fn(tree, *others)


def partition(tree: Tree, keep: Callable[[str, Any], Any]) -> tuple[Tree, Tree]:
    """Two trees of this form: the leaves for which `keep(path, leaf)` is true, and the others; None is in their places.

        head, body = duoln.tree.partition(params, lambda path, p: path.startswith("head."))
        params = duoln.tree.combine(head, body)

    Raises:
        DtypeError: `keep` is no function.
    """
    if not callable(keep):
        raise DtypeError(f"[tree] expected tree.partition(tree, keep) with a function, found {type(keep).__name__}")
    rows = [(leaf, bool(keep(path, leaf))) for path, leaf in items(tree)]
    kept, others = ([leaf if chosen is wanted else None for leaf, chosen in rows] for wanted in (True, False))
    return unflatten(tree, kept), unflatten(tree, others)


def combine(*trees: Tree) -> Tree:
    """The leaves of several trees of one form, each of which is in one of them; None, or nothing, is in the others.

    Raises:
        ShapeError: there are no trees, a leaf is in two of them, or they have another form; the message names the path.
    """
    if not trees:
        raise ShapeError("[tree] expected combine(tree, ...) with the parts of a tree, found none")
    return _combine((), [tree for tree in trees if tree is not None])


def _combine(path: tuple[Any, ...], trees: list[Tree]) -> Tree:
    if len(trees) < 2:
        return trees[0] if trees else None
    tree, *others = trees
    if not isinstance(tree, _BRANCHES):
        raise _mismatch_error(path, "None beside a leaf", others[0])
    for second in others:
        if not (isinstance(second, dict) and second.keys() == tree.keys() if isinstance(tree, dict) else
                isinstance(second, _SEQUENCES) and len(second) == len(tree)):
            raise _mismatch_error(path, _keys(tree) if isinstance(tree, dict) else f"{len(tree)} entries", second)
    parts = {key: _combine((*path, key), [branch for each in trees if (branch := each[key]) is not None])
             for key in (tree if isinstance(tree, dict) else range(len(tree)))}
    return _rebuild(tree, parts if isinstance(tree, dict) else list(parts.values()))


def _mismatch_error(path: tuple[Any, ...], expected: str, actual: Tree) -> ShapeError:
    if isinstance(actual, dict):
        text = _keys(actual)
    elif isinstance(actual, list | tuple):
        text = f"{len(actual)} entries"
    elif actual is None:
        text = "None"
    else:
        text = f"a leaf of {type(actual).__name__}"
    return ShapeError(f"[tree] at '{'.'.join(str(p) for p in path) or 'the root'}': expected {expected}, found {text}")


def _keys(tree: dict[Any, Any]) -> str:
    return f"keys {', '.join(sorted(str(key) for key in tree))}" if tree else "an empty dict"


def zipped(tree: Tree, *others: Tree) -> list[tuple[Any, ...]]:
    """The leaves at each path of several trees, in the order of the first. Raises as `map`."""
    rows: list[tuple[Any, ...]] = []
    map(lambda *leaves: rows.append(leaves), tree, *others)
    return rows


def unflatten(tree: Tree, new_leaves: Sequence[Any]) -> Tree:
    """A tree of the form of `tree` whose leaves are taken from `new_leaves` in order.

    Raises:
        ShapeError: the number of leaves differs.
    """
    source = iter(new_leaves)
    try:
        result = map(lambda _: next(source), tree)
    except (StopIteration, RuntimeError):
        result = None
    if result is None or next(source, None) is not None:
        raise ShapeError(f"[tree] expected {len(leaves(tree))} leaves, found {len(new_leaves)}")
    return result


def __dir__() -> list[str]:
    return sorted(__all__)
