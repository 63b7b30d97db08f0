"""A run is a folder: what was asked (config.json), what happened (log.jsonl), checkpoints, and the result.

The log is append-only, one JSON object a line, so a kill loses at most the last line. Its first line says
which versions, device and flags the numbers come from.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import duoln
from duoln import strictjson
from duoln.backends.protocol import Backend
from duoln.checkpoint import write_atomically
from duoln.data import json_text
from duoln.data.bounded import opened
from duoln.data.json_text import parse_json
from duoln.errors import CheckpointError, DataError, DataFormatError
from duoln.tasks.events import Evaluation, Listener, RunStart, Step
from duoln.tasks.spec import Config

_MANY_STEPS = 1000
_MAX_JSON = 1 << 20
"""Bytes of `config.json` or `result.json`, which have some 1,000."""
_LONGEST_LINE = 1 << 20
"""Bytes of an entry of a log, which has some 200. A log may have any number of them: they are read one by one."""


class RunFolder(Listener):
    """One run on disk; a listener that writes the log.

    Args:
        path: the folder; made if it is not there.
        backend: what the run computes on, for the log's header.

    Raises:
        CheckpointError: the folder cannot be made or written, or another process runs in it.
    """

    def __init__(self, path: Path, backend: Backend) -> None:
        self.path, self._backend = path, backend
        self._log: TextIO | None = None
        self._lock: TextIO | None = None
        self._log_every = 1
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path / "lock")
            self._log = (path / "log.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            self.close()
            raise CheckpointError(f"{path}: the run folder cannot be written: {error.strerror or error}") from error

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_config(self, task: str, variant: str, config: Config) -> None:
        """Note what this run is."""
        content = {"task": task, "variant": variant, "config": dataclasses.asdict(config)}
        write_atomically(self.path / "config.json", (strictjson.dumps(content, indent=2) + "\n").encode())

    def on_start(self, event: RunStart) -> None:
        self._log_every = 1 if event.steps_per_epoch <= _MANY_STEPS else 10
        self._write({
            "event": "start", "time": datetime.now(UTC).isoformat(timespec="seconds"), "task": event.task,
            "variant": event.variant, "seed": event.config.seed, "dataset": event.dataset._asdict(),
            "first_step": event.first_step, "last_step": event.last_step, "steps_per_epoch": event.steps_per_epoch,
            "parameters": event.parameters, "refused": list(event.refused), "log_every": self._log_every,
            "duoln": duoln.__version__, "python": platform.python_version(), "numpy": np.__version__,
            "platform": platform.platform(), "argv": sys.argv[1:],
            "backend": {"name": self._backend.name, **self._backend.info()},
        })

    def on_memory(self, step_bytes: int) -> None:
        self._write({"event": "memory", "step_bytes": step_bytes})

    def on_step(self, event: Step) -> None:
        if event.step % self._log_every == 0:
            self._write({"event": "step", "step": event.step, "loss": event.loss, "gradient_norm": event.gradient_norm,
                         "wall_s": round(event.seconds, 6)})

    def on_evaluation(self, event: Evaluation) -> None:
        self._write({"event": "evaluation", "step": event.step, "epoch": round(event.epoch, 6), **event.values,
                     "wall_s": round(event.seconds, 3)})

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        self._write({"event": "end", "status": status, **result})
        if status == "done":
            write_atomically(self.path / "result.json", (strictjson.dumps(result, indent=2) + "\n").encode())
        self.close()

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock is not None:
            self._lock.close()  # which lets go of it
            self._lock = None

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._log is None:
            return
        try:
            self._log.write(strictjson.dumps(entry) + "\n")
            self._log.flush()
        except OSError as error:
            raise CheckpointError(f"{self._log.name}: cannot be written: {error.strerror or error}") from error


def _locked(path: Path) -> TextIO:
    """A file that this process alone holds, until it is closed or the process ends, however it ends."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(20).strip()
        file.close()
        raise CheckpointError(f"{path.parent}: another process ({holder or 'unknown'}) is running in this folder; "
                              "wait for it, or choose another --out") from None
    except OSError:
        file.close()
        raise
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a run.

    Raises:
        CheckpointError: the file is not there.
        DataFormatError: it is not a JSON object.
    """
    try:
        content = strictjson.revive(json_text.read_json(path, _MAX_JSON, "JSON object"))
    except DataFormatError:
        raise
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content, dict):
        raise DataFormatError(path, 0, "a JSON object", type(content).__name__)
    return content


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a run's log. A last line that a kill cut short is left out.

    Raises:
        CheckpointError: there is no log.
        DataFormatError: a line before the last is not JSON.
    """
    file = path / "log.jsonl"
    offset, bad = 0, None
    for line in _log_lines(file):
        if bad is not None:
            raise bad
        try:
            entry = strictjson.revive(parse_json(line))
        except ValueError as error:
            bad = DataFormatError(file, offset, "a JSON object a line", repr(line[:40]))
            bad.__cause__ = error
        else:
            if isinstance(entry, dict):
                yield entry
        offset += len(line) + 1


def _log_lines(file: Path) -> Iterator[bytes]:
    """The lines of a log, one by one."""
    try:
        with opened(file, "log") as lines:
            number = 0
            while line := lines.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise DataFormatError(f"{file}, line {number}", 0, f"a line of at most {_LONGEST_LINE} bytes",
                                          "a longer one")
                yield line.removesuffix(b"\n")
    except DataFormatError:
        raise
    except DataError as error:
        raise CheckpointError(f"{file.parent}: not a run folder: {error}") from error


def run_folders(path: Path) -> list[Path]:
    """The runs in a folder: itself, or those right below it."""
    if (path / "config.json").is_file():
        return [path]
    return sorted(p.parent for p in path.glob("*/config.json"))
