"""Parameters in a file of their own: a tree of arrays in safetensors, each under its path in the tree.

The file's notes have the form of the tree, so that a list is read as a list and the order of names stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.errors import CheckpointError
from duoln.runs.tensor_file import (
    by_path,
    check_name,
    checked_array,
    form_of,
    in_bytes,
    opened_tensors,
    path_of,
    tree_of,
)
from duoln.runtime import backend_of, to_tensors
from duoln.system.filesystem import write_atomically

_KIND = "a file of duoln.save's parameters"
_FORMAT = 1


def save(path: str | Path, params: Any) -> None:
    """Write parameters, or another tree of arrays, into one file in safetensors; `load` reads it.

        duoln.save("model.safetensors", params)
        params = duoln.load("model.safetensors")

    The file is written aside and renamed: a kill leaves the old file or the new one.

    Args:
        path: the file; its folder exists.
        params: a tree of dicts, lists and tuples, with tensors or NumPy arrays. Trees of other classes, such as an
            OrderedDict or a named tuple, are read as dicts, lists and tuples. None is an empty branch.

    Raises:
        DtypeError: a leaf is no tensor and no array of numbers, has masked values, or a dict has a name that is no text
            or is "__metadata__".
        ShapeError: two arrays have one path, as in {"a.b": x, "a": {"b": y}}, or the tree is nested too deeply or too
            large: more than some 100,000 arrays.
        UsageError: the path ends as a file of another format does, such as .npz or .pt.
        GradientError: a tensor is part of a gradient that is still being computed.
        CheckpointError: the file cannot be written.
    """
    path = path_of("save", path)
    check_name("save", path)
    form = form_of("save", params, lambda leaf: None)
    arrays = {name: checked_array("save", name, leaf) for name, leaf in by_path("save", params).items()}
    write_atomically(path, in_bytes("save", arrays, {"format": _FORMAT, "parameters": form}))


def load(path: str | Path, backend: Backend | str | None = None) -> Any:
    """The parameters that `save` has written, as tensors on a backend; integers become int32, as in `duoln.tensor`.

    Raises:
        DtypeError: the backend lacks a dtype. The rest as `load_arrays` and `duoln.backend`.
    """
    where = backend_of("load", backend)
    return to_tensors(load_arrays(path), where)


def load_arrays(path: str | Path) -> Any:
    """The tree that `save` has written, as NumPy arrays of the dtypes that were saved.

    NumPy has no bfloat16: an array of that dtype is a tensor of the NumPy backend.

    Raises:
        CheckpointError: there is no such file, or `save` has not written it, or it is damaged.
    """
    path = path_of("load", path)
    with opened_tensors(path, _KIND) as (file, notes):
        if "parameters" not in notes:
            has = ("a state of a training loop; duoln.load_state(folder) reads it" if "state" in notes else
                   "a checkpoint of a run; duoln.runs.trained.load_trained reads its model" if "update" in notes else
                   f"notes of {', '.join(notes)}")
            raise CheckpointError(f"{path}: expected {_KIND}, found {has}")
        if notes["format"] != _FORMAT:
            raise CheckpointError(f"{path}: expected format {_FORMAT} of {_KIND}, found {notes['format']!r:.20}")
        like = tree_of(notes["parameters"], _path)
        names = tree.leaves(like)
        if odd := sorted(file.names.symmetric_difference(names)):
            where = "in the file, not in its notes" if odd[0] in file.names else "missing"
            raise CheckpointError(f"{path}: expected the arrays of its notes, found that {odd[0]!r} is {where}")
        arrays = file.arrays()
        return tree.map(lambda name: arrays[name], like)


def _path(path: str, form: Any) -> str:
    """The leaf of a form: its path. Raises ValueError for one that `save` does not write."""
    if form is not None:
        raise ValueError(f"expected an array in the notes, found {form!r:.60}")
    return path
