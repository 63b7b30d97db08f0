"""In every condition of the streams: no traceback, complete files, and the right exit code."""

import json
import subprocess
import sys
from types import MappingProxyType
from typing import NamedTuple

import pytest
from conftest import PATIENCE

from duoln.cli import console, streams
from duoln.errors import OutputError
from duoln.system import processes

NO_READER = "mkfifo pipe; (: < pipe) & exec 3> pipe; wait"
"""Descriptor 3 is a pipe without a reader."""
LOST = 7
"""The result could not be written; everything else was done."""


class Condition(NamedTuple):
    line: str
    environment: dict[str, str] = MappingProxyType({})
    talking: int = 0
    result: int = 0
    readable: bool = False
    """Whether stdout arrives, so that it can be looked at."""


def _variables(**environment: str) -> Condition:
    return Condition("COMMAND", environment, readable=True)


STREAMS = {
    "nothing special": Condition("COMMAND", readable=True),
    "stdout full": Condition("COMMAND > /dev/full", result=LOST),
    "stderr full": Condition("COMMAND 2> /dev/full", readable=True),
    "stdout closed": Condition("COMMAND >&-", result=LOST),
    "stderr closed": Condition("COMMAND 2>&-", readable=True),
    "stdin closed": Condition("COMMAND <&-", readable=True),
    "all closed": Condition("COMMAND <&- >&- 2>&-", result=LOST),
    "stdout for reading only": Condition("COMMAND 1< /dev/null", result=LOST),
    "stderr for reading only": Condition("COMMAND 2< /dev/null", readable=True),
    "stdout nowhere": Condition("COMMAND > /dev/null"),
    "stdout's reader gone": Condition(f"{NO_READER}; COMMAND >&3", result=LOST),
    "stderr's reader gone": Condition(f"{NO_READER}; COMMAND 2>&3", readable=True),
    "stdout is stderr": Condition("COMMAND >&2"),
    "stdout a file": Condition("COMMAND > written; code=$?; cat written; exit $code", readable=True),
    "a file of limited size": Condition("(trap '' XFSZ; ulimit -f 0; COMMAND > written)", result=LOST, talking=1),
}

VARIABLES = {
    "C locale": _variables(LC_ALL="C"),
    "C locale, no coercion": _variables(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"),
    "ASCII": _variables(PYTHONIOENCODING="ascii"),
    "Latin 1": _variables(PYTHONIOENCODING="latin-1:strict"),
    "a dumb terminal": _variables(TERM="dumb"),
    "an unknown terminal": _variables(TERM="\x1b[31m"),
    "20 columns": _variables(COLUMNS="20"),
    "0 columns": _variables(COLUMNS="0"),
    "columns in superscript": _variables(COLUMNS="\u00b2"),
    "columns without end": _variables(COLUMNS="9" * 5000),
    "no colour": _variables(NO_COLOR="1"),
    "forced colour": _variables(FORCE_COLOR="1"),
    "a terminal that is none": _variables(TTY_COMPATIBLE="1", TTY_INTERACTIVE="1"),
    "optimised": _variables(PYTHONOPTIMIZE="2"),
    "development mode": _variables(PYTHONDEVMODE="1", PYTHONWARNINGS="default"),
    "no home": _variables(HOME=""),
    "a home that is not there": _variables(HOME="/nowhere/at/all", XDG_CACHE_HOME="/nowhere"),
}

CONDITIONS = {**STREAMS, **VARIABLES}
EVERY_DAY = ("stdout full", "stderr full", "all closed", "stdout's reader gone", "columns in superscript")
"""What the ordinary suite runs too: one of each cause."""

RUN = ["run", "mnist", "--plugin", "mnist", "--preset", "smoke", "--variant", "none", "--epochs", "1", "--backend", "numpy", "--out", "r"]
FILES = {"config.json", "command.json", "log.jsonl", "result.json", "checkpoints", "lock"}
QUICK = [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.minutes) for name in CONDITIONS]


def _shell(condition, words, folder):
    command = " ".join(f"'{word}'" for word in processes.command("duoln", *words))
    kept = {k: v for k, v in processes.environment().items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    return subprocess.run(["bash", "-c", condition.line.replace("COMMAND", command)], cwd=folder, check=False, text=True,
                          errors="replace", env={**kept, **condition.environment}, capture_output=True, timeout=PATIENCE)


def _check_quiet(done):
    assert not [word for word in ("Traceback", "Exception ignored", "Fatal") if word in done.stderr], done.stderr


@pytest.mark.parametrize("name", QUICK)
def test_a_command_with_a_result(name, tmp_path):
    condition = CONDITIONS[name]
    done = _shell(condition, ["list", "--plugin", "mnist", "--json"], tmp_path)
    _check_quiet(done)
    assert done.returncode == condition.result, done.stderr
    if condition.readable:
        assert [t["name"] for t in json.loads(done.stdout)["tasks"]] == ["mnist"]


@pytest.mark.minutes
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_run_is_complete(name, tmp_path):
    condition = CONDITIONS[name]
    done = _shell(condition, RUN, tmp_path)
    _check_quiet(done)
    assert done.returncode == (condition.talking or condition.result), done.stderr
    if not condition.talking:
        _check_complete(tmp_path / "r" / "none")


def _check_complete(run):
    """Every file of the run exists, is complete, and contains no foreign text."""
    assert {p.name for p in run.iterdir()} == FILES
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert (entries[0]["event"], entries[-1]["event"], entries[-1]["status"]) == ("start", "end", "done")
    assert json.loads((run / "result.json").read_text())["updates"] == entries[-1]["updates"]
    assert {p.name for p in run.parent.iterdir()} >= {"none", "curves.csv"}


@pytest.mark.long
@pytest.mark.parametrize("words", [["run", "nothing", "--json"], ["run", "--json"]])
def test_an_error_whose_document_cannot_be_written_keeps_its_code(words, tmp_path):
    done = _shell(CONDITIONS["stdout full"], words, tmp_path)
    _check_quiet(done)
    assert done.returncode == 2 and ("nothing" in done.stderr or "required" in done.stderr)


@pytest.mark.long
def test_what_could_not_be_written_is_said(tmp_path):
    done = _shell(CONDITIONS["stdout full"], ["list", "--plugin", "mnist"], tmp_path)
    assert done.returncode == LOST
    assert "duoln: [stdout] the result cannot be written: No space left on device" in done.stderr


# Output of other code -----------------------------------------------------------------------------------

NOISE = """
import ctypes, os, subprocess, sys
from duoln.cli import console, streams
print("before")
with streams.claimed():
    print("python")
    sys.__stdout__.write("past the claim\\n")
    os.write(1, b"descriptor\\n")
    subprocess.run(["echo", "child"])
    console.put("result")
print("after")
"""


@pytest.mark.long
def test_stdout_has_results_alone():
    done = subprocess.run([sys.executable, "-c", NOISE], env=processes.environment(), capture_output=True, text=True,
                          check=True)
    assert done.stdout.split() == ["before", "result", "after"]
    assert sorted(done.stderr.splitlines()) == ["child", "descriptor", "past the claim", "python"]


def test_a_claim_inside_a_claim_is_the_same(capsys):
    with streams.claimed() as first, streams.claimed() as second:
        assert second is first and not first.written
        print("talk")
        console.put("result")
        assert first.written
    print("later")
    assert capsys.readouterr() == ("result\nlater\n", "talk\n")


def test_closing_what_is_not_ones_own(capsys):
    with streams.claimed():
        sys.stdout.close()
        print("talk")
        console.put("result")
    assert capsys.readouterr() == ("result\n", "talk\n")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_result_without_stdout(monkeypatch, stream, tmp_path):
    if stream == "closed":
        stream = (tmp_path / "f").open("w")
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OutputError, match="cannot be written"):
        console.put("x")
    monkeypatch.setattr(sys, "stderr", stream)
    console.say("lost")
