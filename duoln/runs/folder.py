"""A run is a folder: its settings (config.json), its events (log.jsonl), checkpoints, and the result.

The log has one JSON object on each line. Its first line has the versions, device and flags of the run. A kill or a full
disk may leave unfinished files; they are repaired when the folder is opened again.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import duoln
from duoln.backends.protocol import Backend
from duoln.data import json_text
from duoln.errors import CheckpointError, DataError, DataFormatError
from duoln.runs import checkpoint
from duoln.runs.commit import git
from duoln.runs.log import NAME as LOG, RunLog
from duoln.runs.norm_stats import Layers, entry_of
from duoln.runs.places import CHECKPOINTS, CONFIG, LOCK, MAX_JSON, RESULT, check_apart
from duoln.system.filesystem import check_regular, lock, make_folder, open_to_append, remove, write_all, write_own
from duoln.tasks.events import Evaluation, Listener, RunStart, Update
from duoln.tasks.task import Config

_MANY_UPDATES = 1000


class RunFolder(Listener):
    """A run on disk. It listens to the events of the run and writes the log.

    Args:
        path: the folder; made if it is not there.
        backend: what the run computes on, for the log's header.

    Raises:
        CheckpointError: the folder cannot be made or written, another process uses it, or one of duoln's names in it is
            no regular file.
        UsageError: the folder is in another run, or has others in it.
        DataFormatError: the log is damaged before its last line.
    """

    def __init__(self, path: Path, backend: Backend) -> None:
        self.path, self._backend = path, backend
        self._log_every = 1
        self._first_update = 0
        check_apart(path)
        make_folder(path)
        for name in (LOCK, LOG, CONFIG, RESULT):
            check_regular(path / name)
        checkpoint.check_names(self.checkpoints)
        with ExitStack() as opened:
            try:
                descriptor, unlocked = _locked(path / LOCK)
                opened.callback(os.close, descriptor)
                self._log = RunLog(path / LOG)
                opened.callback(self._log.close)
                unfinished = [part for folder in (path, self.checkpoints, path.parent)
                              for part in checkpoint.remove_parts(folder)]
                unfinished += checkpoint.remove_old(self.checkpoints)
            except BlockingIOError as error:  # the lock file was removed while another process had it
                raise _locked_error(path, "its number is unknown") from error
            except OSError as error:
                raise CheckpointError(f"{path}: the run folder cannot be written: {error.strerror or error}") from error
            self.close = opened.pop_all().close
            """Closes the log, and unlocks the folder."""
        self.mended = [
            *([f"{path}: not locked, because {unlocked}; start no other run in it"] if unlocked else []),
            *filter(None, [self._log.mended]),
            *(f"{part}: removed; a save that was cut short left it" for part in unfinished)]
        """The repairs that were made when the folder was opened, in words; and that it is not locked, if it is not."""

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write_config(self, task: str, variant: str, config: Config, precision: str = "float32") -> None:
        """Write the settings of this run."""
        content = {"task": task, "variant": variant, "precision": precision, "config": dataclasses.asdict(config)}
        write_json(self.path / CONFIG, content)

    def on_start(self, event: RunStart) -> None:
        self._first_update = event.first_update
        self._log_every = 1 if event.steps_per_epoch <= _MANY_UPDATES else 10
        self._write({
            "event": "start", "time": datetime.now(UTC).isoformat(timespec="microseconds"), "task": event.task,
            "variant": event.variant, "seed": event.config.seed, "precision": event.precision,
            "dataset": event.dataset._asdict(), "first_update": event.first_update, "last_update": event.last_update,
            "steps_per_epoch": event.steps_per_epoch,
            "identity": dict(event.identity), "changes": [change._asdict() for change in event.changes],
            "parameters": event.parameters, "refused": list(event.refused), "mended": list(event.mended),
            "log_every": self._log_every,
            "duoln": duoln.__version__, "git": git(), "python": platform.python_version(), "numpy": np.__version__,
            "platform": platform.platform(), "argv": sys.argv[1:],
            "backend": {"name": self._backend.name, **self._backend.info()},
        })

    def on_memory(self, step_bytes: int) -> None:
        self._write({"event": "memory", "step_bytes": step_bytes})

    def on_update(self, event: Update) -> None:
        if event.update == self._first_update + 1:
            remove(self.path / RESULT)  # a resumed run has no result until it ends
        if event.update % self._log_every == 0:
            self._write({"event": "update", "update": event.update, "loss": event.loss,
                         "gradient_norm": event.gradient_norm, "wall_s": round(event.seconds, 6)})

    def on_evaluation(self, event: Evaluation) -> None:
        self._write({"event": "evaluation", "update": event.update, "epoch": round(event.epoch, 6), **event.values,
                     "wall_s": round(event.seconds, 3)})

    def write_layers(self, update: int, layers: Layers) -> None:
        """Write the statistics of the layers after an update."""
        self._write(entry_of(update, layers))

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        entry = {"event": "end", "status": status, **result}
        if self._backend.proofs is not None:
            entry["rules"] = self._backend.proofs.summary()
        if status == "done":
            self.sync()
            self._write(entry)
            write_json(self.path / RESULT, result)
        else:
            with suppress(CheckpointError):  # the user must see why the run ended, and not this error
                self._write(entry)
        self.close()

    def sync(self) -> None:
        """Sync the log to the disk. This must be done before a later checkpoint is written.

        Raises:
            CheckpointError: the disk is full, or fails.
        """
        self._log.sync()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._log.append(entry)


def rewrite_config(folder: Path, config: Config) -> None:
    """Write other settings into the `config.json` of a run; what else is in it stays.

    Raises:
        CheckpointError, DataFormatError: as `read_json`, or it cannot be written.
    """
    before = read_json(folder / CONFIG)
    now = {**before, "config": dataclasses.asdict(config)}
    if json_text.dumps(now) != json_text.dumps(before):
        write_json(folder / CONFIG, now)


def _locked(path: Path) -> tuple[int, str]:
    """Lock a file for this process, until the file is closed or the process ends.

    The results are a descriptor, and the reason why the file is not locked where its file system has no locks.
    """
    descriptor = open_to_append(path)
    try:
        unlocked = lock(descriptor)
        os.ftruncate(descriptor, 0)
        write_all(descriptor, str(os.getpid()).encode())
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise _locked_error(path.parent, holder or "its number is unknown") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, unlocked


def _locked_error(path: Path, holder: str) -> CheckpointError:
    return CheckpointError(f"{path}: another process ({holder}) is running in this folder; wait for it, or choose "
                           "another --out")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object that `read_json` reads.

    Raises:
        CheckpointError: it cannot be written.
    """
    write_own(path, (json_text.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a run.

    Raises:
        CheckpointError: the file is not there.
        DataFormatError: it is not a JSON object.
    """
    try:
        content = json_text.revive(json_text.read_json(path, MAX_JSON, "JSON object"))
    except DataFormatError:
        raise
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content, dict):
        raise DataFormatError(path, 0, "a JSON object", type(content).__name__)
    return content


def folder_name(variant: str, differences: Mapping[str, str]) -> str:
    """The name of a folder of a run among others that differ from it in these settings."""
    return "-".join([variant, *(f"{key}{value}".replace("/", "-") for key, value in differences.items())])
