"""Everything that one device can show, an NVIDIA GPU or a Mac, in one command of less than ten minutes.

    duoln bench survey --out DIR

measures CuPy on an NVIDIA GPU. With `--backend mlx` it measures MLX on a Mac. It runs from a checkout that is not
installed; it needs the array library, NumPy, pluggy and rich, and compares with PyTorch where that is installed.

Each part is a process of its own with a time limit (`survey_parts`, `duoln.testing.prover`), so the other parts run
even if one fails, hangs or makes the device unusable. The folder gets a record of each part, `log.txt` with all that
they print, and `summary.md`. The summary and the archive are made again after every part, from what is there: so a
survey that is interrupted leaves all that it measured, and a part that is run alone joins the records of before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from duoln.bench import text
from duoln.data import json_text
from duoln.errors import CheckpointError
from duoln.runs.commit import commit_words, git
from duoln.system import processes
from duoln.system.filesystem import write_atomically
from duoln.system.paths import path_argument

SUMMARY, LOG = "summary.md", "log.txt"
REPEATS = 50
PARTS = {
    "ladder": ("the simplest things first: launches, sums, products, graphs, clusters", 25),
    "selftest": ("every kernel compiled, and compared with float64", 65),
    "repeats": (f"steps of every task as graphs; walks and a case of each rule, {REPEATS} times, equal to the bit", 60),
    "ops": ("norms and cross-entropy beside a copy, and the limits of a CUDA device", 90),
    "rnn": ("LN-LSTM and LN-GRU beside PyTorch's loop, and its plain layers", 75),
    "steps": ("whole training steps, eager and compiled", 70)}
"""The parts, the most important first: are the kernels right, how long does our work take. Each has its seconds."""
_PROVED = ("ladder", "selftest", "repeats")
DONE, FAILED, CUT_SHORT, LEFT_OUT = "done", "FAILED", "cut short", "left out"
_COMPILING_SECONDS = 400
"""The time of one core for all settings of the CUDA kernels: NVRTC needs 200 s for 583 of them on an AMD EPYC; the rest
is for processes that start, and a reserve."""
_OFFLINE = {"DUOLN_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
_TIMED = {"DUOLN_PROVE": "0"}
"""No part that times proves rules meanwhile, or times another rule because one case was off: the selftest says that."""
_PLAIN_REDUCTIONS = {"CUPY_ACCELERATORS": ""}
"""CuPy compiles a reduction by CUB for 2 s and a plain one for 0.1 s, of each operation and dtype."""
_LAST_LINES = 12
_LEAST_SHARE = 1 / 3
"""A part is left out if less than this share of its seconds is left."""
_KILL_SECONDS, _REPORT_SECONDS = 10.0, 5.0
"""For a part to end that is killed; and kept for the last summary and archive."""


class Part(NamedTuple):
    """One part of the survey. Its command writes the JSON file `NAME.json`, if it can after every figure."""

    name: str
    what: str
    command: list[str]
    seconds: int
    """The time limit."""
    environment: Mapping[str, str] = {}


class Outcome(NamedTuple):
    """The end of a part."""

    part: Part
    state: str = "not yet run"
    """"done", "FAILED", "cut short", "left out", "interrupted" or "not yet run"."""
    seconds: float = 0.0
    problem: str = ""
    """The reason why it failed or was left out."""


def parts(backend: str, out: Path, quick: bool, cores: int) -> list[Part]:
    """All parts of a backend.

    Args:
        backend: "cupy", "mlx" or "numpy".
        out: the folder of the JSON files.
        quick: tiny sizes.
        cores: of the machine; with fewer of them the kernels take longer to compile.
    """
    made = []
    for name, (what, seconds) in PARTS.items():
        proved = name in _PROVED
        command = processes.command("duoln.testing.prover" if proved else "duoln.bench.survey_parts", "--what", name,
                                    "--backend", backend, "--json", str(out / f"{name}.json"),
                                    *(["--quick"] if quick else []))
        compiling = 20 + _COMPILING_SECONDS // max(cores, 1) if name == "selftest" and backend == "cupy" else 0
        environment = {**_OFFLINE, **({} if proved else _TIMED),
                       **(_PLAIN_REDUCTIONS if proved or name == "ops" else {})}
        made.append(Part(name, what, command, seconds + compiling, environment))
    return made


def options(module: str, what: str, json_required: bool = True) -> argparse.ArgumentParser:
    """The options of every program that is a part."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=what)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--json", type=path_argument, required=json_required, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N",
                        help="what has not begun by then is left out")
    return parser


def save(content: Mapping[str, Any], file: Path) -> None:
    """Write what there is so far; a part that is stopped at its limit keeps what it has measured."""
    write_atomically(file, f"{json_text.dumps(content, indent=1)}\n".encode())


# Running ----------------------------------------------------------------------------------------------

def survey(wanted: Sequence[Part], out: Path, say: Callable[[str], None], until: float,
           archive: Path | None = None) -> bool:
    """Run some parts; True if none of them failed.

    Args:
        wanted: the parts, in order.
        out: the folder, which is made if it is not there; records of other parts in it stay.
        say: takes lines of progress.
        until: by `time.monotonic()`; parts are shortened or left out so that all have ended then.
        archive: a file that gets the whole folder after every part.

    An interrupt ends the part that runs, and the summary says so.

    Raises:
        CheckpointError: the folder or the archive cannot be written.
    """
    outcomes = {part.name: Outcome(part) for part in wanted}

    def keep() -> None:
        write_atomically(out / SUMMARY, summary(out, list(outcomes.values())).encode())
        if archive is not None:
            pack(out, archive)

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error.strerror or error}") from error
    keep()
    for part in wanted:
        say(f"{part.name}: {part.what}")
        limit = limit_of(part, until - time.monotonic())
        try:
            outcome = run_part(part, out, limit) if limit else Outcome(
                part, LEFT_OUT, 0.0, f"too few of the {part.seconds} s that it may take were left")
        except BaseException:
            outcomes[part.name] = Outcome(part, "interrupted")
            keep()
            raise
        outcomes[part.name] = outcome
        keep()
        say(f"  {outcome.state}{f' in {outcome.seconds:.0f} s' if outcome.seconds else ''}")
    return all(outcome.state != FAILED for outcome in outcomes.values())


def limit_of(part: Part, seconds: float) -> float:
    """The seconds that a part gets of those that are left for the survey; 0 if it is left out."""
    left = seconds - _REPORT_SECONDS
    return 0.0 if left < _LEAST_SHARE * part.seconds else min(left, part.seconds)


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


def run_part(part: Part, out: Path, limit: float) -> Outcome:
    """Run one part for at most `limit` seconds. Its record is in the folder afterwards, if there is one."""
    file, log = out / f"{part.name}.json", out / LOG
    file.unlink(missing_ok=True)  # what an earlier run measured must not pass for this one's
    started = time.monotonic()
    with log.open("ab") as output:
        output.write(f"== {part.name}\n".encode())
        output.flush()
        before = output.tell()
        process = subprocess.Popen([*part.command, "--seconds", f"{limit:.0f}"], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   env=processes.environment(part.environment))
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    printed = log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
    record, state, problem = _record(file), FAILED, f"exit code {code}"
    if code is None:
        state = CUT_SHORT if limit < part.seconds or "cases" in record else FAILED
        problem = f"stopped after {limit:.0f} s"
    elif code == 0:
        state, problem = (DONE, "") if record else (FAILED, "it wrote no record")
    words = "\n".join([problem, *printed[-_LAST_LINES:]]) if problem else ""
    return Outcome(part, state, time.monotonic() - started, words)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all processes that it started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it is inside a driver, which ends it later or never
        process.wait(_KILL_SECONDS)


def _record(file: Path) -> dict[str, Any]:
    """The record of a part; empty if there is none that can be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


# The summary ------------------------------------------------------------------------------------------

def summary(out: Path, outcomes: Sequence[Outcome]) -> str:
    """The results so far, as Markdown: of these parts, and of those that have a record in the folder."""
    by_name = {outcome.part.name: outcome for outcome in outcomes}
    names = dict.fromkeys([*by_name, *sorted(file.stem for file in out.glob("*.json"))])
    records = {name: _record(out / f"{name}.json") for name in names}
    known = {key: value for name in ("host", "backend") for key, value in next(
        (record[name] for record in records.values() if isinstance(record.get(name), dict)), {}).items()}
    lines = ["# Survey of one device", "",
             f"{datetime.now(UTC).isoformat(timespec='seconds')}, commit {commit_words(git()) or 'not known'}", "",
             *(f"* {key}: {value}" for key, value in known.items()), "",
             "| part | what | seconds | |", "| --- | --- | --- | --- |",
             *(f"| {o.part.name} | {o.part.what} | {o.seconds:.0f} | {o.state} |" for o in outcomes),
             *(f"| {name} | | | of before |" for name in names if name not in by_name)]
    for name, record in records.items():
        problem = by_name[name].problem if name in by_name else ""
        if problem or record:
            lines += ["", f"## {name}"]
        if problem:
            lines += ["", "```", problem, "```"]
        if record:
            lines += ["", *(_rules(record) if "rules" in record else _times(record))]
    return "\n".join(lines) + "\n"


def _times(content: Mapping[str, Any]) -> list[str]:
    headings, rows = text.table(content.get("cases", []))
    table = [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)] if rows else []
    return [*table, "", *(f"* did not run: {what}: {why}" for what, why in content.get("missing", {}).items())]


def _rules(content: Mapping[str, Any]) -> list[str]:
    rules = content["rules"]
    lines = [f"* {name}: {words}" for name, words in content.get("checks", {}).items()]
    lines += [f"* {r['op']}, {r['rule']}: {r['cases']} cases, error {r['error']:.2g} of what is allowed, "
              f"{'repeats' if r['repeats'] else 'DOES NOT REPEAT'}, {len(r['failures'])} failed" for r in rules]
    lines += [f"* near: {line}" for r in rules for line in r["near"]]
    for failure in (*content.get("failures", ()), *(line for r in rules for line in r["failures"])):
        first, _, rest = failure.partition("\n")  # what follows, such as a compiler's log, stands as it was written
        lines.append(f"* failed: {first}" + (f"\n\n```\n{rest}\n```\n" if rest else ""))
    if content["running"]:
        lines.append(f"* stopped while it tried: {', '.join(content['running'])}")
    return [*lines, f"* left out: {content['left out']} of {content['expected']}"] if content["left out"] else lines
