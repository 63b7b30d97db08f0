"""The log of a run, log.jsonl: whole lines, appended without a buffer, and mended when it is opened.

A line that a kill or a full disk cut short is removed: at once where that is possible, else when the log is next
opened, as the journal of a database is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from duoln.data import strictjson
from duoln.data.bounded import opened
from duoln.data.json_text import parse_json
from duoln.errors import CheckpointError, DataError, DataFormatError
from duoln.system.filesystem import open_to_append, write_all

NAME = "log.jsonl"
_LONGEST_LINE = 1 << 20
"""Bytes of an entry, which has some 200. A log may have any number of them: they are read one by one."""


class RunLog:
    """A log that this process alone appends to.

    Args:
        path: the file; made if it is not there.

    Raises:
        CheckpointError: it is not a file of one name.
        DataFormatError: a line before the last ones is not JSON.
        OSError: it cannot be opened or mended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = open_to_append(path)
        self.mended = ""
        """What was removed of an unfinished line, in words; empty if there was none."""
        try:
            good, size = _good_length(path), os.fstat(self._descriptor).st_size
            if good < size:
                os.ftruncate(self._descriptor, good)
                self.mended = f"{path}: removed {size - good} bytes of a line that was not written to its end"
        except BaseException as error:
            self.close()
            if isinstance(error, DataError) and not isinstance(error, DataFormatError):
                raise CheckpointError(str(error)) from error
            raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; nothing once the log is closed.

        Raises:
            CheckpointError: it cannot be written. The log is then as before, and closed.
        """
        if self._descriptor is None:
            return
        end = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, (strictjson.dumps(entry) + "\n").encode())
        except OSError as error:
            with suppress(OSError):  # where this fails too, the next opening does it
                os.ftruncate(self._descriptor, end)
            self.close()
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def sync(self) -> None:
        """See to it that every line is on the disk, so that no checkpoint is ahead of the log.

        Raises:
            CheckpointError: the disk is full, or fails.
        """
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """The entries of a run's log. A last line that a kill cut short is left out.

    Raises:
        CheckpointError: there is no log.
        DataFormatError: a line before the last is not JSON, or far too long.
    """
    try:
        for _, entry in _entries(run / NAME):
            if isinstance(entry, dict):
                yield entry
    except DataFormatError:
        raise
    except DataError as error:
        raise CheckpointError(f"{run}: not a run folder: {error}") from error


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """The lines of a log up to a last one that is not JSON: where each whole one ends (0 for others), and its value."""
    offset, bad = 0, None
    with opened(path, "log") as file:
        while line := file.readline(_LONGEST_LINE + 1):
            if bad is not None:
                raise bad
            if len(line) > _LONGEST_LINE:
                raise DataFormatError(path, offset, f"a line of at most {_LONGEST_LINE} bytes", "a longer one")
            try:
                entry = strictjson.revive(parse_json(line.removesuffix(b"\n")))
            except ValueError as error:
                bad = DataFormatError(path, offset, "a JSON object a line", repr(line[:40]))
                bad.__cause__ = error
            offset += len(line)
            if bad is None:
                yield offset if line.endswith(b"\n") else 0, entry


def _good_length(path: Path) -> int:
    """How many bytes of a log are whole lines that can be read, to the last such one."""
    return max((end for end, _ in _entries(path)), default=0)
