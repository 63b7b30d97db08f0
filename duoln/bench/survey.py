"""Everything that one device can show, an NVIDIA GPU or a Mac, in one command of less than ten minutes.

    duoln bench survey --out DIR

measures CuPy on an NVIDIA GPU. With `--backend mlx` it measures MLX on a Mac. It runs from a checkout that is not
installed; it needs the array library, NumPy, pluggy and rich, and compares with PyTorch where that is installed.

Each part is a process of its own with a time limit (`survey_parts`, `duoln.testing.prover`), so the other parts run
even if one fails, hangs or makes the device unusable. The folder gets a JSON file for each part and its output in
`logs/`; `survey.json` says how each ended. `summary.md` and the archive are made again after every part, from what is
there: so a survey that is interrupted leaves all that it measured, and a part that is run alone joins those of before.
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
from duoln.errors import CheckpointError, RecordError, UsageError
from duoln.runs.commit import git
from duoln.system import processes
from duoln.system.filesystem import write_atomically
from duoln.system.paths import path_argument

SUMMARY = "summary.md"
REPEATS = 50
NOT_THERE = "not there"
"""The state of a part that this machine cannot run, and the key by which its JSON file gives the reason."""
_WAITING, _CUT_SHORT, _LEFT_OUT = "not yet run", "cut short", "left out"
_ABOUT, _SCHEMA = "survey.json", "duoln-survey/1"
_COMPILING_SECONDS = 400
"""The time of one core for all settings of the CUDA kernels: NVRTC needs 200 s for 583 of them on an AMD EPYC; the rest
is for processes that start, and a reserve."""
_LIMIT = "the seconds that it gets"
"""A word of a command that stands for this number."""
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


# The parts --------------------------------------------------------------------------------------------

class Part(NamedTuple):
    """One part of the survey. Its command writes the JSON file `NAME.json`, if it can after every figure."""

    name: str
    what: str
    command: list[str]
    seconds: int
    """The time limit."""
    environment: Mapping[str, str] = {}


_ALL = (
    ("ladder", "the simplest things first: launches, sums, products, graphs, clusters", 25, True),
    ("selftest", "every kernel compiled, and compared with float64", 65, True),
    ("graphs", "a step of every task: its graph against operator by operator", 30, False),
    ("repeats", f"walks and one case of each rule, {REPEATS} times, equal to the bit", 30, True),
    ("device", "memory, launches, exchanges between blocks", 20, False),
    ("ops", "norms and cross-entropy beside a copy", 70, True),
    ("rnn", "LN-LSTM and LN-GRU beside PyTorch's loop, and its plain layers", 75, False),
    ("steps", "whole training steps, eager and compiled", 70, False),
    ("sanitizer", "a small case of each kernel under compute-sanitizer", 50, False))
"""The parts, the most important first: are the kernels right, what can the device do, how long does our work take.
Each has its name, what it does, its seconds, and whether CuPy makes plain reductions."""
_PROVED, _ON_CUDA = ("ladder", "selftest", "graphs", "repeats"), ("device", "sanitizer")


def parts(backend: str, out: Path, quick: bool, cores: int) -> list[Part]:
    """All parts of a backend.

    Args:
        backend: "cupy", "mlx" or "numpy".
        out: the folder of the JSON files.
        quick: tiny sizes.
        cores: of the machine; with fewer of them the kernels take longer to compile.
    """
    made = []
    for name, what, seconds, plain in _ALL:
        if name in _ON_CUDA and backend != "cupy":
            continue
        command = processes.command(
            "duoln.testing.prover" if name in _PROVED else "duoln.bench.survey_parts", "--what", name, "--seconds",
            _LIMIT, "--backend", backend, "--json", str(out / f"{name}.json"), *(["--quick"] if quick else []))
        compiling = 20 + _COMPILING_SECONDS // max(cores, 1) if name == "selftest" and backend == "cupy" else 0
        environment = {**_OFFLINE, **({} if name in _PROVED else _TIMED), **(_PLAIN_REDUCTIONS if plain else {})}
        made.append(Part(name, what, command, seconds + compiling, environment))
    return made


def chosen_parts(everything: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts of these names in the survey's order; all of them if no name is given.

    Raises:
        UsageError: there is no part of a name.
    """
    known = [part.name for part in everything]
    for name in names:
        if name not in known:
            raise UsageError(f"[survey] expected a part of {', '.join(known)}; found {name!r}")
    return [part for part in everything if not names or part.name in names]


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


# The folder -------------------------------------------------------------------------------------------

class Outcome(NamedTuple):
    """The end of a part."""

    name: str
    what: str
    state: str
    """"done", "FAILED", "not there", "cut short", "left out", "interrupted" or "not yet run"."""
    seconds: float = 0.0
    problem: str = ""
    """The reason why it failed, or why this machine cannot run it."""

    @property
    def good(self) -> bool:
        """True if nothing is wrong. A part that the machine cannot run, or that had too little time, is not wrong."""
        return self.state in ("done", NOT_THERE, _CUT_SHORT, _LEFT_OUT)


class Folder:
    """The folder of a survey. One that has a survey already is continued, if it is of the same backend and size.

    Raises:
        UsageError: a survey of another backend or of other sizes is there.
        RecordError: `survey.json` is no survey's.
    """

    def __init__(self, path: Path, backend: str, quick: bool = False) -> None:
        self.path = path
        asked = {"backend": backend, "quick": quick}
        before = self._read()
        earlier = {key: before.get(key) for key in asked}
        if before and earlier != asked:
            raise UsageError(f"[survey] {path}: expected a folder without a survey, or with one of {asked}; found one "
                             f"of {earlier}")
        self.about: dict[str, Any] = {
            "schema": _SCHEMA, **asked, "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "git": git(), "parts": {}, **before}

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all parts, in the order in which they were first asked for."""
        return [Outcome(name, **entry) for name, entry in self.about["parts"].items()]

    def record_path(self, part: str) -> Path:
        """The JSON file of a part."""
        return self.path / f"{part}.json"

    def log_path(self, part: str) -> Path:
        """The output of a part."""
        return self.path / "logs" / f"{part}.log"

    def record(self, part: str) -> dict[str, Any]:
        """The figures of a part; empty if there is nothing that can be read."""
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
        self.add(*(Outcome(part.name, part.what, _WAITING) for part in wanted))

    def add(self, *outcomes: Outcome) -> None:
        """Take outcomes, and write them and the summary."""
        for outcome in outcomes:
            entry = outcome._asdict()
            self.about["parts"][entry.pop("name")] = entry
        save(self.about, self.path / _ABOUT)
        write_atomically(self.path / SUMMARY, summary(self).encode())

    def _read(self) -> dict[str, Any]:
        file = self.path / _ABOUT
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RecordError(file, "the file", "a survey", str(error)) from error
        if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
            schema = content.get("schema") if isinstance(content, dict) else None
            raise RecordError(file, "schema", _SCHEMA, repr(schema))
        return content


# Running ----------------------------------------------------------------------------------------------

def limit_of(part: Part, seconds: float) -> float:
    """The seconds that a part gets of those that are left for the survey; 0 if it is left out."""
    left = seconds - _REPORT_SECONDS
    return 0.0 if left < _LEAST_SHARE * part.seconds else min(left, part.seconds)


def survey(wanted: Sequence[Part], folder: Folder, say: Callable[[str], None], until: float,
           archive: Path | None = None) -> bool:
    """Run some parts; whether none of them failed.

    Args:
        wanted: the parts, in order.
        folder: of the results; the outcomes of other parts in it stay.
        say: takes lines of progress.
        until: by `time.monotonic()`; parts are shortened or left out so that all have ended then.
        archive: a file that gets the whole folder after every part.

    An interrupt ends the part that runs, and the folder says so.
    """
    def tell(outcome: Outcome) -> None:
        folder.add(outcome)
        if archive is not None:
            pack(folder.path, archive)
        say(f"  {outcome.state}{f' in {outcome.seconds:.0f} s' if outcome.seconds else ''}")

    folder.begin(wanted)
    if archive is not None:
        pack(folder.path, archive)
    good = True
    for part in wanted:
        say(f"{part.name}: {part.what}")
        limit = limit_of(part, until - time.monotonic())
        try:
            outcome = run_part(part, folder, limit) if limit else Outcome(
                part.name, part.what, _LEFT_OUT, 0.0, f"too few of the {part.seconds} s that it may take were left")
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
        command = [f"{limit:.0f}" if word == _LIMIT else word for word in part.command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=processes.environment(part.environment), start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    if code is None:
        cut_short = limit < part.seconds or "cases" in folder.record(part.name)
        state, problem = _CUT_SHORT if cut_short else "FAILED", f"stopped after {limit:.0f} s\n{_last_lines(log)}"
    elif code:
        state, problem = "FAILED", f"exit code {code}\n{_last_lines(log)}"
    else:
        state, problem = _of_record(record)
    return Outcome(part.name, part.what, state, seconds, problem.strip())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all processes that it started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it is inside a driver, which ends it later or never
        process.wait(_KILL_SECONDS)


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:])


def _of_record(record: Path) -> tuple[str, str]:
    """State and problem of a part that has ended by itself."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return "FAILED", f"no JSON: {error}"
    return (NOT_THERE, content[NOT_THERE]) if NOT_THERE in content else ("done", "")


# The summary ------------------------------------------------------------------------------------------

def summary(folder: Folder) -> str:
    """The results so far, as Markdown."""
    outcomes = folder.outcomes
    records = {outcome.name: folder.record(outcome.name) for outcome in outcomes}
    known = {key: value for name in ("host", "backend") for key, value in next(
        (record[name] for record in records.values() if isinstance(record.get(name), dict)), {}).items()}
    commit = (folder.about["git"] or {}).get("sha", "not known")
    lines = ["# Survey of one device", "", f"{folder.about['started']}, commit {commit}", "",
             *(f"* {key}: {value}" for key, value in known.items()), "",
             "| part | what | seconds | |", "| --- | --- | --- | --- |",
             *(f"| {o.name} | {o.what} | {o.seconds:.0f} | {o.state} |" for o in outcomes)]
    for outcome in outcomes:
        record = records[outcome.name]
        if outcome.problem or record:
            lines += ["", f"## {outcome.name}"]
        if outcome.problem:
            lines += ["", outcome.problem] if outcome.state == NOT_THERE else ["", "```", outcome.problem, "```"]
        if record:
            lines += ["", *_figures(record)]
    return "\n".join(lines) + "\n"


def _figures(content: Mapping[str, Any]) -> list[str]:
    if "rules" in content:
        return _rules(content)
    if "tools" in content:
        return [f"* {tool}: {outcome['result']}" for tool, outcome in content["tools"].items()]
    headings, rows = text.table(content.get("cases", []))
    table = [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)] if rows else []
    return [*table, "", *(f"* did not run: {what}: {why}" for what, why in content.get("missing", {}).items())]


def _rules(content: Mapping[str, Any]) -> list[str]:
    lines = []
    compiled = content.get("compilation")
    if compiled:
        lines += [f"* compiled: {compiled['settings']} settings by {compiled['processes']} processes in "
                  f"{compiled['seconds']:.0f} s, without those that CuPy's cache on the disk had; "
                  f"{compiled['processor seconds']:.0f} s of work, the slowest {compiled['slowest seconds']:.1f} s "
                  f"({compiled['slowest']})",
                  *(f"* did not compile: {line}" for line in compiled["failures"])]
    lines += [f"* {name}: {words}" for name, words in content.get("checks", {}).items()]
    rules = content["rules"]
    lines += [f"* {r['op']}, {r['rule']}: {r['cases']} cases, error {r['error']:.2g} of what is allowed, "
              f"{'repeats' if r['repeats'] else 'DOES NOT REPEAT'}, {len(r['failures'])} failed" for r in rules]
    lines += [f"* near: {line}" for r in rules for line in r["near"]]
    for failure in (*content.get("failures", ()), *(line for r in rules for line in r["failures"])):
        first, _, rest = failure.partition("\n")  # what follows, such as a compiler's log, stands as it was written
        lines.append(f"* failed: {first}" + (f"\n\n```\n{rest}\n```\n" if rest else ""))
    if content["running"]:
        lines.append(f"* stopped while it tried: {', '.join(content['running'])}")
    return [*lines, f"* left out: {content['left out']} of {content['expected']}"] if content["left out"] else lines
