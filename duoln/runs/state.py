"""The state of a training loop of one's own, in checkpoints: parameters, slots, streams of random numbers, numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.arguments import check_integer, described
from duoln.errors import CheckpointError, DtypeError, UsageError
from duoln.randomness import Stream
from duoln.runs import checkpoint
from duoln.runs.tensor_file import by_path, checked_array, form_of, path_of, tree_of
from duoln.runtime import backend_of, tensor
from duoln.system.filesystem import check_folder

_LARGEST_UPDATE = 10**9 - 1


def save_state(folder: str | Path, update: int, **state: Any) -> Path:
    """Write a checkpoint of a training loop, from which `load_state` goes on; returns its path.

        duoln.save_state("run", update, params=params, slots=slots, noise=stream)

    The file is written aside, synced and renamed, and has a checksum: a kill at any moment leaves the checkpoints
    before it whole. The two newest are kept.

    Args:
        folder: of the checkpoints of one loop; it is made if it is not there.
        update: how many updates were made.
        **state: trees of tensors, NumPy arrays, `duoln.Stream`s, numbers, texts and None.

    Raises:
        DtypeError: a leaf is none of these, or `update` is no integer. ShapeError: `update` is below 0.
        CheckpointError: the folder cannot be written, or it has checkpoints of a run of `duoln run`.
    """
    folder, update = path_of("save_state", folder), check_integer("save_state", "update", update, 0, _LARGEST_UPDATE)
    if not state:
        raise UsageError("[save_state] expected what to save, such as params=params, slots=slots, found nothing")
    form = form_of("save_state", state, _form)
    arrays = {path: checked_array("save_state", path, leaf) for path, leaf in by_path("save_state", state).items()
              if isinstance(leaf, Tensor | np.ndarray | np.generic)}
    paths = checkpoint.list_paths(folder)
    if paths and update < checkpoint.update_of(paths[-1]):
        saved, _ = checkpoint.newest(folder)  # one that cannot be read is no reason to stop
        if saved is not None and update < saved.update:
            raise CheckpointError(f"{folder}: expected updates after {saved.update}, which is saved there, found "
                                  f"{update}; go on from duoln.load_state, or choose another folder")
    path = checkpoint.save(folder, update, arrays, {"state": form})
    checkpoint.remove_parts(folder)  # of writes that a kill ended
    return path


def load_state(folder: str | Path, backend: Backend | str | None = None) -> dict[str, Any] | None:
    """The newest state that `save_state` has written whole: a dict of what was saved, and "update"; None at the start.

        saved = duoln.load_state("run") or {"update": 0, "params": params, "slots": slots}

    Tensors are on `backend`, arrays and numbers as they were; a stream goes on with the number that came next. A
    checkpoint that cannot be read, such as one that a disk has damaged, is passed over with a `CheckpointWarning`.

    Raises:
        CheckpointError: none of the checkpoints can be read, they are of a run of `duoln run`, or `folder` is a file.
    """
    folder = path_of("load_state", folder)
    check_folder(folder)
    saved, refused = checkpoint.newest(folder)
    if saved is None:
        if refused:
            raise CheckpointError(f"{folder}: no checkpoint can be read: {'; '.join(refused)}")
        return None
    where, arrays = backend_of("load_state", backend), dict(saved.arrays)
    try:
        state = tree_of(saved.notes["state"], lambda path, form: _leaf(form, arrays.get(path), where))
    except (KeyError, ValueError, TypeError, DtypeError) as error:
        raise CheckpointError(f"{saved.path}: expected a state of duoln.save_state, found {error}") from error
    checkpoint.warn_of(saved, refused)
    return {**state, "update": saved.update}


def _form(leaf: Any) -> Any:
    """The notes about a leaf; None for a tensor."""
    if isinstance(leaf, Tensor):
        return None
    if isinstance(leaf, np.ndarray | np.generic):
        return {"array": leaf.dtype.str}
    if isinstance(leaf, Stream):
        return {"stream": [leaf.seed, leaf.name, leaf.epoch, leaf.step, leaf.position]}
    if isinstance(leaf, bool | int | float | str):
        return {"value": leaf}
    raise DtypeError("[save_state] expected tensors, arrays, streams, numbers, texts and None, found "
                     f"{described(leaf)}")


def _leaf(form: Any, array: Any, backend: Backend) -> Any:
    """The leaf of such a form. Raises ValueError, TypeError or DtypeError where the two do not fit."""
    if form is None and array is not None:
        return tensor(array, backend)
    [(kind, value)] = form.items()
    if kind == "array" and array is not None:
        return np.asarray(array, np.dtype(value))
    if kind == "stream":
        return Stream(*value)
    if kind == "value":
        return value
    raise ValueError(f"a leaf that says {form!r:.60}")
