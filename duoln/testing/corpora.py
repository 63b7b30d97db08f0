"""Checks the readers of a task: they must refuse damaged files, and name them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from duoln.errors import DataError, UsageError
from duoln.tasks.task import Task

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in half": lambda content: content[:len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "of other bytes": lambda content: bytes(255 - byte for byte in content),
}


def check_corpus(task: Task, cfg: Any, corpus: Path, harmless: Collection[str] = ()) -> None:
    """Check that a task reads a small corpus, and refuses it as soon as one of its files is damaged.

    Each file is damaged in turn, in a copy: emptied, cut in half, shortened by a byte, overwritten. `task.data` then
    raises a `DataError` that names the file; it neither falls back on other data nor fails in another way.

    Args:
        task: the task.
        cfg: a configuration that reads the corpus.
        corpus: a folder laid out like DUOLN_DATA, with sound files of a few kB.
        harmless: damages, of `DAMAGES`, that leave a file of this corpus sound: half of a plain text is a text, and so
            is one without its last byte, `harmless=("cut in half", "without its last byte")`.

    Raises:
        AssertionError: the corpus is not read, or a damaged copy is read, or its refusal is not a `DataError` with the
            file's name.
        UsageError: `harmless` names a damage that is none of `DAMAGES`, or leaves none of them.
        UsageError, DataError: errors of the task about the undamaged corpus.
    """
    _check_harmless(harmless)
    if task.data(cfg, corpus).dataset.provenance == "synthetic":
        raise AssertionError(f"data: expected what {corpus} holds, found made data; is it laid out as the task reads "
                             "it?")
    for file in sorted(p.relative_to(corpus) for p in corpus.rglob("*") if p.is_file()):
        for how, damage in DAMAGES.items():
            if how in harmless:
                continue
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "corpus"
                shutil.copytree(corpus, copy)
                (copy / file).write_bytes(damage((corpus / file).read_bytes()))
                _check_refused(task, cfg, copy, file, how)


def _check_harmless(harmless: Collection[str]) -> None:
    known = f"some of {', '.join(map(repr, DAMAGES))}"
    if isinstance(harmless, str):
        raise UsageError(f"[check_corpus] harmless: expected {known} in a tuple, found the text {harmless!r}")
    strangers = [how for how in harmless if how not in DAMAGES]
    if strangers:
        raise UsageError(f"[check_corpus] harmless: expected {known}; found {strangers[0]!r}")
    if set(harmless) == set(DAMAGES):
        raise UsageError("[check_corpus] harmless: expected a damage that is left to check, found all of them")


def _check_refused(task: Task, cfg: Any, corpus: Path, file: Path, how: str) -> None:
    try:
        task.data(cfg, corpus)
    except DataError as error:
        if file.name not in str(error):
            raise AssertionError(f"data: {file} {how}: expected an error that names the file, found: {error}"
                                 ) from error
        return
    except Exception as error:
        raise AssertionError(f"data: {file} {how}: expected a DataError, found {type(error).__name__}: {error}"
                             ) from error
    raise AssertionError(f"data: {file} {how}: expected a DataError, found no error")
