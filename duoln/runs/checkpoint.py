"""Checkpoints: a tree of arrays in safetensors, written aside and moved into place.

A kill at any moment leaves the previous checkpoint whole: the file is written under another name in the
same folder, synced to disk, renamed, and the folder synced. The checkpoint is saved at the moment of that rename. All
that a resumed run needs is in the checkpoint, also the number of the best checkpoint so far; it is kept as long as
a checkpoint names it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from duoln import tree
from duoln.errors import CheckpointError, CheckpointWarning
from duoln.runs.tensor_file import Array, by_path, in_bytes, opened_tensors
from duoln.system.filesystem import check_folder, check_regular, is_abandoned, make_folder, remove, write_own

FORMAT = 1
_NAME = re.compile(r"update-([0-9]{9}|[1-9][0-9]{9,})\.safetensors")
_OWN_PART = re.compile(r"(update-\d+\.safetensors|(config|result|command)\.json|lock|(curves|norm_stats)\.(csv|png))"
                       r"\.[0-9a-f]{8}\.part")
_KEPT = 2
"""The number of newest checkpoints that are kept, in addition to the best one that each of them names."""


class Checkpoint(NamedTuple):
    """A checkpoint in memory: its arrays by dotted name, and its notes."""

    path: Path
    update: int
    arrays: dict[str, Array]
    notes: dict[str, Any]

    @property
    def best_update(self) -> int | None:
        """The update of the best checkpoint of the run up to this one; None where no evaluation was any good."""
        best: int | None = self.notes.get("best_update")
        return best


def check_names(folder: Path) -> None:
    """Refuse a folder of checkpoints that is a link, or in which the name of a checkpoint is no regular file.

    Raises:
        CheckpointError: the message says where.
    """
    check_folder(folder)
    for path in list_paths(folder):
        check_regular(path)


def save(folder: Path, update: int, arrays: Any, notes: Mapping[str, Any]) -> Path:
    """Write the checkpoint after an update, then remove all but the two newest and the best of each.

    Args:
        folder: made if it is not there.
        update: how many updates were made.
        arrays: a tree of NumPy arrays or tensors.
        notes: anything JSON can hold; `best_update` is the number of the best checkpoint so far, which may be this one.

    Raises:
        CheckpointError: it cannot be written. Nothing older is lost.
        ShapeError, DtypeError: it could not be read again: two arrays have one path, a name is "__metadata__", or there
            are more than some 100,000.
    """
    content = in_bytes("checkpoint", by_path("checkpoint", arrays), {"format": FORMAT, "update": update, **notes})
    make_folder(folder)
    check_folder(folder)
    path = update_path(folder, update)
    write_own(path, content)
    remove_old(folder)
    return path


def remove_old(folder: Path) -> list[Path]:
    """Remove the checkpoints that no resumed run needs, and return their paths.

    The two newest readable checkpoints and the best one of each are kept. Newer checkpoints that cannot be read are
    kept too, so that the user can examine them.

    Raises:
        CheckpointError: one cannot be removed.
    """
    kept: set[Path] = set()
    paths, readable = list_paths(folder), 0
    for path in reversed(paths):
        if readable == _KEPT:
            break
        kept.add(path)
        try:
            with _opened(path) as (_, notes):
                best = notes.get("best_update")
        except CheckpointError:  # a resumed run reports the reason
            continue
        kept.update([] if best is None else [update_path(folder, best)])
        readable += 1
    old = [path for path in paths if path not in kept]
    for path in old:
        remove(path)
    return old


def load_best(saved: Checkpoint) -> Checkpoint:
    """The best checkpoint of a run up to one of its checkpoints; that one itself where no evaluation was any good.

    Raises:
        CheckpointError: the best is not there any more, or cannot be read.
    """
    best = saved.best_update
    if best in (None, saved.update):
        return saved
    try:
        return load(update_path(saved.path.parent, best))
    except CheckpointError as error:
        raise CheckpointError(f"{saved.path}: the best checkpoint before it is lost: {error}; go on without it with "
                              "--set patience=0") from error


def update_path(folder: Path, update: int) -> Path:
    """The path of the checkpoint after an update, which need not exist."""
    return folder / f"update-{update:09d}.safetensors"


def update_of(path: Path) -> int:
    """The update of the checkpoint at a path, as its name says it."""
    return int(path.name.removeprefix("update-").removesuffix(".safetensors"))


def remove_parts(folder: Path) -> list[Path]:
    """Remove the files of unfinished writes, whose writers have ended, and return their paths.

    Raises:
        CheckpointError: one cannot be removed.
    """
    parts = [p for p in folder.glob("*.part") if _OWN_PART.fullmatch(p.name) and is_abandoned(p)]
    for part in parts:
        remove(part)
    return parts


def list_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted((p for p in folder.glob("update-*.safetensors") if _NAME.fullmatch(p.name)), key=update_of)


def load(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CheckpointError: it is damaged, of another format, or not a duoln checkpoint.
    """
    with _opened(path) as (file, notes):
        return Checkpoint(path, notes["update"], file.arrays(), notes)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a checkpoint's file and read its notes; every error in them is a CheckpointError."""
    with opened_tensors(path, "a duoln checkpoint") as (file, notes):
        if notes["format"] != FORMAT:
            raise CheckpointError(f"{path}: expected checkpoint format {FORMAT}, found {notes['format']}")
        if _NAME.fullmatch(path.name) and (named := update_of(path)) != notes["update"]:
            raise CheckpointError(f"{path}: expected update {named}, as its name says, found {notes['update']}")
        yield file, notes


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and why each newer one was refused."""
    refused: list[str] = []
    for path in reversed(list_paths(folder)):
        try:
            return load(path), refused
        except CheckpointError as error:
            refused.append(str(error))
    return None, refused


def warn_of(used: Checkpoint, refused: Sequence[str]) -> None:
    """Warn of the checkpoints that an older one replaces, because they cannot be read."""
    if refused:
        warnings.warn(f"{used.path} is used, because a newer checkpoint cannot be read: {'; '.join(refused)}",
                      CheckpointWarning, stacklevel=4)


def restore(like: Any, arrays: Mapping[str, Array]) -> Any:
    """A tree of the form of `like` with the arrays of a checkpoint.

    Raises:
        CheckpointError: names, shapes or dtypes differ; the message names the first.
    """
    expected = dict(tree.items(like))
    if expected.keys() != arrays.keys():
        odd = sorted(expected.keys() ^ arrays.keys())[0]
        where = "missing from" if odd in expected else "unexpected in"
        raise CheckpointError(f"'{odd}' is {where} the checkpoint: it was made by another model or optimizer")
    for name, leaf in expected.items():
        if arrays[name].shape != leaf.shape or str(arrays[name].dtype) != leaf.dtype:
            raise CheckpointError(f"'{name}': expected {leaf.dtype} of shape {leaf.shape}, "
                                  f"found {arrays[name].dtype} of shape {arrays[name].shape}")
    return tree.unflatten(like, [arrays[name] for name in expected])
