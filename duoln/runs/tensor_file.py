"""Files in safetensors with notes in JSON. A reader limits the header and has one class of error for what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from duoln.data import strictjson
from duoln.data.bounded import CONTENT_ERRORS, opened
from duoln.data.json_text import parse_json
from duoln.errors import CheckpointError, DataError

NOTES = "duoln"
"""The key of the file's metadata under which the notes are."""
_MAX_HEADER = 1 << 20
"""The most bytes of a header; each array takes some 100. The safetensors library accepts 100 million."""


def in_bytes(arrays: Mapping[str, np.ndarray], notes: Mapping[str, Any]) -> bytes:
    """The content of a file with these arrays by name, and notes that JSON can hold."""
    import safetensors.numpy  # imported here and below, because only saving and loading need the package

    return safetensors.numpy.save(dict(arrays), {NOTES: strictjson.dumps(dict(notes))})


def in_foreign_bytes(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The content of a file for other libraries: these arrays by name, and texts by name."""
    import safetensors.numpy

    return safetensors.numpy.save(dict(arrays), dict(metadata))


@contextmanager
def opened_tensors(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open a file and read its notes; every error that they cause in the block is a CheckpointError.

    The arguments and errors are those of `opened_foreign`.
    """
    with opened_foreign(path, kind) as file:
        yield file, strictjson.revive(parse_json((file.metadata() or {})[NOTES].encode()))


@contextmanager
def opened_foreign(path: Path, kind: str) -> Iterator[Any]:
    """Open a file without notes; every error that it causes in the block is a CheckpointError.

    Args:
        path: the file.
        kind: what it has to be, for errors, such as "a duoln checkpoint".

    Raises:
        CheckpointError: it is not there, damaged, of another kind, or does not fit into the memory.
    """
    import safetensors

    _check_header(path, kind)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except MemoryError as error:
        raise CheckpointError(f"{path}: does not fit into the memory ({path.stat().st_size} bytes)") from error
    except (safetensors.SafetensorError, OSError, *CONTENT_ERRORS, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not {kind}: {type(error).__name__}: {error!s:.200}") from error


def _check_header(path: Path, kind: str) -> None:
    """Raises CheckpointError for anything but a regular file, or for a header that claims too many bytes."""
    try:
        with opened(path, kind.rpartition(" ")[2]) as file:
            size = int.from_bytes(file.read(8), "little")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if size > _MAX_HEADER:
        raise CheckpointError(f"{path}: not {kind}: expected a header of at most {_MAX_HEADER} bytes, found a claim of "
                              f"{size}")
