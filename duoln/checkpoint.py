"""Checkpoints: a tree of arrays in safetensors, written aside and moved into place.

A kill at any moment leaves the previous checkpoint whole: the file is written under another name in the
same folder, synced to disk, renamed, and the folder synced.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.data.bounded import CONTENT_ERRORS, opened
from duoln.data.json_text import parse_json, read_json
from duoln.errors import CheckpointError, DataError

FORMAT = 1
_MAX_HEADER = 1 << 20
"""Bytes of a checkpoint's header; each array takes some 100 of them. The library that reads it believes 100 million."""
_MAX_POINTER = 1 << 12
"""Bytes of a file that names a checkpoint."""
_NAME = re.compile(r"step-(\d+)\.safetensors")
_OWN_PART = re.compile(r"(step-\d+\.safetensors|(latest|best|config|result)\.json)\.part")


class Checkpoint(NamedTuple):
    """A checkpoint that was read: its arrays by dotted name, and what was noted beside them."""

    path: Path
    step: int
    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old one or the new one, whole, whenever the machine stops.

    Raises:
        CheckpointError: the write failed; the old file is untouched.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def save(folder: Path, step: int, arrays: Any, notes: Mapping[str, Any], keep: int = 2, best: bool = False) -> Path:
    """Write the checkpoint of one step, then `latest.json`, then remove all but the newest `keep` and the best.

    Args:
        folder: made if it is not there.
        step: how many updates were made.
        arrays: a tree of NumPy arrays.
        notes: anything JSON can hold.
        keep: how many to keep.
        best: whether this is the best so far; `best.json` names it, and it is kept until a better one comes.

    Raises:
        CheckpointError: it cannot be written. Nothing older is lost.
    """
    flat = {path: np.asarray(leaf, order="C") for path, leaf in tree.items(arrays)}
    metadata = {"duoln": json.dumps({"format": FORMAT, "step": step, **notes})}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made: {error.strerror or error}") from error
    import safetensors.numpy  # late: who neither saves nor loads needs no such package

    path = folder / f"step-{step:09d}.safetensors"
    write_atomically(path, safetensors.numpy.save(flat, metadata))
    pointer = (json.dumps({"file": path.name, "step": step}) + "\n").encode()
    for name in ("latest.json", *(["best.json"] if best else [])):
        write_atomically(folder / name, pointer)
    kept = named_best(folder)
    for old in list_steps(folder)[:-keep]:
        if old != kept:
            old.unlink(missing_ok=True)
    return path


def named_best(folder: Path) -> Path | None:
    """The checkpoint that `best.json` names; None where there is no such file, or none that can be read."""
    try:
        name = read_json(folder / "best.json", _MAX_POINTER)["file"]
        good = isinstance(name, str) and _NAME.fullmatch(name) and (folder / name).is_file()
    except (DataError, OSError, KeyError, TypeError):  # a name may be too long even to be asked for
        return None
    return folder / name if good else None


def remove_parts(folder: Path) -> list[Path]:
    """Remove what writes that were cut short left behind; the files that were removed."""
    parts = [p for p in folder.glob("*.part") if _OWN_PART.fullmatch(p.name)]
    for part in parts:
        part.unlink(missing_ok=True)
    return parts


def list_steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(p for p in folder.glob("step-*.safetensors") if _NAME.fullmatch(p.name))


def load(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CheckpointError: it is damaged, of another format, or not a duoln checkpoint.
    """
    import safetensors

    _check_header(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            notes = parse_json((file.metadata() or {})["duoln"].encode())
            if notes["format"] != FORMAT:
                raise CheckpointError(f"{path}: expected checkpoint format {FORMAT}, found {notes['format']}")
            _check_notes(path, notes)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return Checkpoint(path, notes["step"], arrays, notes)
    except MemoryError as error:
        raise CheckpointError(f"{path}: does not fit into the memory ({path.stat().st_size} bytes)") from error
    except (safetensors.SafetensorError, OSError, *CONTENT_ERRORS, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a duoln checkpoint: {type(error).__name__}: {error!s:.200}") from error


def _check_header(path: Path) -> None:
    """Raises CheckpointError for what is no regular file, or claims a header that no checkpoint of ours has."""
    try:
        with opened(path, "checkpoint") as file:
            size = int.from_bytes(file.read(8), "little")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if size > _MAX_HEADER:
        raise CheckpointError(f"{path}: not a duoln checkpoint: expected a header of at most {_MAX_HEADER} bytes, "
                              f"found a claim of {size}")


def _check_notes(path: Path, notes: Mapping[str, Any]) -> None:
    """What resuming works with is of the kind that `save` and the trainer wrote; KeyError without a step."""
    kinds: dict[str, tuple[str, tuple[type, ...]]] = {
        "step": ("a whole number", (int,)), "config": ("an object", (dict,)), "evaluated": ("an object", (dict,)),
        "train_seconds": ("a number", (int, float)), "best": ("a number or null", (int, float, type(None))),
        "worse": ("a whole number", (int,))}
    for key, (words, kind) in kinds.items():
        value = notes[key] if key == "step" else notes.get(key, kind[0]())
        # Python's whole numbers have no end, and those beyond 2^63 fit into no array.
        odd = isinstance(value, int) and not -2 ** 63 <= value < 2 ** 63
        if not isinstance(value, kind) or isinstance(value, bool) or odd or (key == "step" and notes[key] < 0):
            raise CheckpointError(f"{path}: {key}: expected {words}{' of at least 0' if key == 'step' else ''}, "
                                  f"found {value!r:.60}")


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and why each newer one was refused."""
    refused: list[str] = []
    for path in reversed(list_steps(folder)):
        try:
            return load(path), refused
        except CheckpointError as error:
            refused.append(str(error))
    return None, refused


def restore(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A tree of the form of `like` with the arrays of a checkpoint.

    Raises:
        CheckpointError: names, shapes or dtypes differ; the message names the first.
    """
    expected = dict(tree.items(like))
    if expected.keys() != arrays.keys():
        odd = sorted(expected.keys() ^ arrays.keys())[0]
        where = "missing from" if odd in expected else "unexpected in"
        raise CheckpointError(f"'{odd}' is {where} the checkpoint: it was made by another model or optimiser")
    for name, leaf in expected.items():
        if arrays[name].shape != leaf.shape or arrays[name].dtype.name != leaf.dtype:
            raise CheckpointError(f"'{name}': expected {leaf.dtype} of shape {leaf.shape}, "
                                  f"found {arrays[name].dtype} of shape {arrays[name].shape}")
    return tree.unflatten(like, [arrays[name] for name in expected])
