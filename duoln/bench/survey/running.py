"""Runs the parts of a survey, one after the other, into one folder.

Each part is a process of its own with a time limit, so the other parts run even if one fails, hangs or makes the device
unusable. The folder gets, for each part, its JSON file and its output in `logs/`; `survey.json` says how each ended.
`summary.md`, `verdicts.json` and the picture are made again after every part, from what is there: so a survey that
is interrupted leaves a valid folder, and a part that is run alone joins those of before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from duoln.bench.survey.folder import NOT_THERE, Folder, Outcome
from duoln.bench.survey.parts import Part
from duoln.bench.survey.report import write_reports
from duoln.system import processes

_LAST_LINES = 12


def survey(wanted: Sequence[Part], folder: Folder, say: Callable[[str], None]) -> bool:
    """Run some parts; whether none of them failed.

    Args:
        wanted: the parts, in order.
        folder: where to; the outcomes of other parts in it stay.
        say: takes lines of progress.

    An interrupt ends the part that runs, and the folder says so.
    """
    folder.begin(wanted)
    write_reports(folder)
    good = True
    for part in wanted:
        say(f"{part.name}: {part.what}")
        try:
            outcome = run_part(part, folder)
        except BaseException:
            folder.add(Outcome(part.name, part.what, "interrupted", 0.0, ""))
            write_reports(folder)
            raise
        folder.add(outcome)
        write_reports(folder)
        good = good and outcome.good
        say(f"  {outcome.state} in {outcome.seconds:.0f} s")
    return good


def run_part(part: Part, folder: Folder) -> Outcome:
    """Run one part. Its JSON file is in the folder afterwards, if there is one."""
    record, log = folder.record_path(part.name), folder.log_path(part.name)
    record.unlink(missing_ok=True)  # what an earlier run measured must not pass for this one's
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(part.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=processes.environment(), start_new_session=True)
        try:
            code: int | None = process.wait(part.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    problem = _problem(code, part.seconds, log, record)
    reason = None if problem else _reason_why_not(record)
    state = "FAILED" if problem else NOT_THERE if reason else "done"
    return Outcome(part.name, part.what, state, seconds, problem or reason or "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all processes that it started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _problem(code: int | None, limit: int, log: Path, record: Path) -> str:
    """Why a part failed; empty if it did not."""
    last = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:])
    if code is None:
        return f"stopped after {limit} s\n{last}".strip()
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
