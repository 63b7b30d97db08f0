"""The folder of a survey: a JSON file for each part, and `survey.json`, which says how each part ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from duoln.bench import machine
from duoln.bench.survey.parts import Part
from duoln.data import strictjson
from duoln.errors import CheckpointError, RecordError, UsageError
from duoln.system.filesystem import write_atomically

SUMMARY = "summary.md"
SCHEMA = "duoln-survey/1"
NOT_THERE = "not there"
"""The state of a part that this machine cannot run, and the key by which its JSON file gives the reason."""
_WAITING, CUT_SHORT, LEFT_OUT = "not yet run", "cut short", "left out"
_ABOUT = "survey.json"


class Outcome(NamedTuple):
    """How a part ended."""

    name: str
    what: str
    state: str
    """"done", "FAILED", "not there", "cut short", "left out", "interrupted" or "not yet run"."""
    seconds: float = 0.0
    problem: str = ""
    """Why it failed, or why this machine cannot run it."""

    @property
    def good(self) -> bool:
        """Whether nothing is wrong: a part is not, for which the machine is not made or the time was too short."""
        return self.state in ("done", NOT_THERE, CUT_SHORT, LEFT_OUT)


class Folder:
    """The folder of a survey. One that has a survey already is continued, if it is of the same backend and size.

    Args:
        path: the folder; it is made if it is not there.
        backend: "cupy", "mlx" or "numpy"; None for the one of the survey that is there.
        quick: whether the sizes are tiny.

    Raises:
        UsageError: a survey of another backend or of other sizes is there, or none where one must be.
        RecordError: `survey.json` is no survey's.
    """

    def __init__(self, path: Path, backend: str | None = None, quick: bool = False) -> None:
        self.path = path
        self._about = self._read()
        if backend is None:
            if not self._about:
                raise UsageError(f"[survey] {path}: expected the folder of a survey, found no {_ABOUT}")
            return
        asked = {"backend": backend, "quick": quick}
        before = {key: self._about.get(key) for key in asked}
        if self._about and before != asked:
            raise UsageError(f"[survey] {path}: expected a folder without a survey, or with one of {asked}; found one "
                             f"of {before}")
        self._about = {"schema": SCHEMA, **asked, "started": datetime.now(UTC).isoformat(timespec="seconds"),
                       "git": machine.git(), "parts": {}, **self._about}

    @property
    def about(self) -> Mapping[str, Any]:
        """What `survey.json` says besides the parts: backend, time, commit."""
        return {key: value for key, value in self._about.items() if key != "parts"}

    @property
    def outcomes(self) -> list[Outcome]:
        """How each part ended, in the order in which they were first asked for."""
        return [Outcome(name, **entry) for name, entry in self._about["parts"].items()]

    def record_path(self, part: str) -> Path:
        """The JSON file of a part."""
        return self.path / f"{part}.json"

    def log_path(self, part: str) -> Path:
        """The output of a part."""
        return self.path / "logs" / f"{part}.log"

    def record(self, part: str) -> dict[str, Any]:
        """What a part measured; empty if there is nothing that can be read."""
        try:
            content = json.loads(self.record_path(part).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and NOT_THERE not in content else {}

    def begin(self, wanted: Sequence[Part]) -> None:
        """Make the folder, and list the parts that are going to run."""
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be made: {error.strerror or error}") from error
        for part in wanted:
            self._about["parts"].setdefault(part.name, {})
            self._set(Outcome(part.name, part.what, _WAITING))
        self._write()

    def add(self, outcome: Outcome) -> None:
        """Say how a part ended."""
        self._set(outcome)
        self._write()

    def _set(self, outcome: Outcome) -> None:
        entry = outcome._asdict()
        self._about["parts"][entry.pop("name")] = entry

    def _write(self) -> None:
        write_atomically(self.path / _ABOUT, f"{strictjson.dumps(self._about, indent=1)}\n".encode())

    def _read(self) -> dict[str, Any]:
        file = self.path / _ABOUT
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RecordError(file, "the file", "a survey", str(error)) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            schema = content.get("schema") if isinstance(content, dict) else None
            raise RecordError(file, "schema", SCHEMA, repr(schema))
        return content
