"""The log of a run, log.jsonl: complete lines are appended without a buffer, and an unfinished line is removed.

A kill or a full disk may leave an unfinished line. It is removed at once if possible, otherwise when the log is opened
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from duoln.data import json_text
from duoln.data.bounded import opened
from duoln.errors import CheckpointError, DataError, DataFormatError
from duoln.system.filesystem import lock, open_to_append, sync, write_all

NAME = "log.jsonl"
_LONGEST_LINE = 1 << 22
"""The most bytes of an entry; an entry has some 200. A log may have any number of entries, because they are read one by
one."""


class RunLog:
    """A log to which only this process appends.

    Args:
        path: the file; made if it is not there.

    Raises:
        CheckpointError: it is not a file of one name.
        BlockingIOError: another process appends to it, whatever became of the folder's lock file.
        DataFormatError: a line before the last ones is not JSON.
        OSError: it cannot be opened or mended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = open_to_append(path)
        self.mended = ""
        """A report of the unfinished line that was removed; empty if there was none."""
        try:
            lock(self._descriptor)
            good = max((end for end, _ in _entries(path)), default=0)  # where the last complete, readable line ends
            size = os.fstat(self._descriptor).st_size
            if good < size:
                os.ftruncate(self._descriptor, good)
                self.mended = f"{path}: removed {size - good} bytes of a line that was not written to its end"
        except BaseException as error:
            self.close()
            if isinstance(error, DataError) and not isinstance(error, DataFormatError):
                raise CheckpointError(str(error)) from error
            raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; a closed log ignores it.

        Raises:
            CheckpointError: it cannot be written. The log is closed, and as before.
        """
        if self._descriptor is None:
            return
        line, end = (json_text.dumps(entry) + "\n").encode(), None
        try:
            end = os.fstat(self._descriptor).st_size
            write_all(self._descriptor, line)
        except OSError as error:
            if end is not None:
                with suppress(OSError):  # if this fails too, the next opening removes the line
                    os.ftruncate(self._descriptor, end)
            self.close()
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def sync(self) -> None:
        """Sync every line to the disk, so that no checkpoint is ahead of the log.

        Raises:
            CheckpointError: the disk is full, or fails, or the log is no longer in its folder.
        """
        if self._descriptor is None:
            return
        try:
            if not (self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._descriptor))):
                raise CheckpointError(f"{self.path}: expected the log that this run writes, found "
                                      f"{'another file' if self.path.exists() else 'none'}: it, or its folder, was "
                                      "moved or removed during the run")
            sync(self._descriptor)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """The entries of a run's log. An unfinished last line is left out.

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
    """The lines of a log: the offset at which each complete line ends, and its value. An unfinished last line has the
    offset 0.
    """
    offset, bad = 0, None
    with opened(path, "log") as file:
        while line := file.readline(_LONGEST_LINE + 1):
            if bad is not None:
                raise bad
            if len(line) > _LONGEST_LINE:
                raise DataFormatError(path, offset, f"a line of at most {_LONGEST_LINE} bytes", "a longer one")
            try:
                entry = json_text.revive(json_text.parse_json(line.removesuffix(b"\n")))
            except ValueError as error:
                bad = DataFormatError(path, offset, "a JSON object a line", repr(line[:40]))
                bad.__cause__ = error
            offset += len(line)
            if bad is None:
                yield offset if line.endswith(b"\n") else 0, entry
