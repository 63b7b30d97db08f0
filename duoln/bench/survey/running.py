"""Runs the parts of a survey, one after the other, into one folder, within a number of seconds.

Each part is a process of its own with a time limit, so the other parts run even if one fails, hangs or makes the device
unusable. The folder gets, for each part, its JSON file and its output in `logs/`; `survey.json` says how each ended.
`summary.md` and the archive are made again after every part, from what is there: so a survey that
is interrupted leaves all that it measured, and a part that is run alone joins those of before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from duoln.bench.survey.folder import CUT_SHORT, LEFT_OUT, NOT_THERE, Folder, Outcome
from duoln.bench.survey.parts import LIMIT, Part
from duoln.bench.survey.report import write_summary
from duoln.errors import CheckpointError
from duoln.system import processes

_LAST_LINES = 12
_LEAST_SHARE = 1 / 3
"""Of a part's seconds: with fewer of them left, it is left out."""
_KILL_SECONDS, _REPORT_SECONDS = 10.0, 5.0
"""For a part to end that is killed; and kept for the last report and the archive."""


class Budget:
    """The seconds that a survey may take, from now on."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds - _REPORT_SECONDS

    def limit(self, part: Part) -> float:
        """The seconds that a part gets; 0 if it is left out."""
        left = self._until - time.monotonic()
        return 0.0 if left < _LEAST_SHARE * part.seconds else min(left, part.seconds)


def survey(wanted: Sequence[Part], folder: Folder, say: Callable[[str], None], budget: Budget,
           archive: Path | None = None) -> bool:
    """Run some parts; whether none of them failed.

    Args:
        wanted: the parts, in order.
        folder: where to; the outcomes of other parts in it stay.
        say: takes lines of progress.
        budget: of all parts together.
        archive: a file that gets the whole folder after every part.

    An interrupt ends the part that runs, and the folder says so.
    """
    def report() -> None:
        write_summary(folder)
        if archive is not None:
            pack(folder.path, archive)

    def tell(outcome: Outcome) -> None:
        folder.add(outcome)
        report()
        say(f"  {outcome.state}{f' in {outcome.seconds:.0f} s' if outcome.seconds else ''}")

    folder.begin(wanted)
    report()
    good = True
    for part in wanted:
        say(f"{part.name}: {part.what}")
        limit = budget.limit(part)
        try:
            outcome = run_part(part, folder, limit) if limit else Outcome(
                part.name, part.what, LEFT_OUT, 0.0, f"too few of the {part.seconds} s that it may take were left")
        except BaseException:
            tell(Outcome(part.name, part.what, "interrupted"))
            raise
        tell(outcome)
        good = good and outcome.good
    return good


def pack(folder: Path, archive: Path) -> None:
    """Write a folder into an archive; an interrupt leaves the archive of before.

    Raises:
        CheckpointError: it cannot be written.
    """
    made = archive.with_name(f".{archive.name}.part")
    try:
        with tarfile.open(made, "w:gz") as tar:
            tar.add(folder, folder.resolve().name)
        made.replace(archive)
    except OSError as error:
        raise CheckpointError(f"{archive}: cannot be written: {error.strerror or error}") from error


def run_part(part: Part, folder: Folder, limit: float) -> Outcome:
    """Run one part for at most `limit` seconds. Its JSON file is in the folder afterwards, if there is one."""
    record, log = folder.record_path(part.name), folder.log_path(part.name)
    record.unlink(missing_ok=True)  # what an earlier run measured must not pass for this one's
    started = time.monotonic()
    with log.open("wb") as output:
        command = [f"{limit:.0f}" if word == LIMIT else word for word in part.command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=processes.environment(part.environment), start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    problem = _problem(code, limit, log, record)
    reason = None if problem else _reason_why_not(record)
    state = "FAILED" if problem else NOT_THERE if reason else "done"
    if code is None and (limit < part.seconds or "cases" in folder.record(part.name)):
        state = CUT_SHORT
    return Outcome(part.name, part.what, state, seconds, problem or reason or "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all processes that it started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it is inside a driver, which ends it later or never
        process.wait(_KILL_SECONDS)


def _problem(code: int | None, limit: float, log: Path, record: Path) -> str:
    """Why a part failed; empty if it did not."""
    last = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:])
    if code is None:
        return f"stopped after {limit:.0f} s\n{last}".strip()
    if code:
        return f"exit code {code}\n{last}".strip()
    try:
        json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"no JSON: {error}"
    return ""


def _reason_why_not(record: Path) -> str | None:
    content: Any = json.loads(record.read_text(encoding="utf-8"))
    return content.get(NOT_THERE) if isinstance(content, dict) else None
