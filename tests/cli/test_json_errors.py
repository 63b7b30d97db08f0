"""Under --json stdout is one JSON document, whatever happens, for every command that has the option."""

import argparse
import json
import os
import signal

import pytest

from duoln.cli import build_parser, console, main
from duoln.cli.guard import run_to_exit_code
from duoln.cli.parser import wants_json
from duoln.training.trainer import Trainer

RUN = ["run", "mnist", "--plugin", "mnist", "--preset", "smoke", "--variant", "none", "--backend", "numpy", "--epochs", "0"]

WRONG = {
    "run": [(["run", "nothing"], 2, "UsageError"), (["run"], 2, "UsageError"), (["run", "mnist", "--epochs", "x"], 2, "UsageError"),
            ([*RUN, "--backend", "cupy"], 3, "BackendError"), ([*RUN, "--out", "/dev/null/x"], 1, "CheckpointError"),
            ([*RUN, "--set", "source=mnist"], 4, "DataMissingError"),
            ([*RUN, "--epochs", "1", "--set", "learning_rate=1e30"], 5, "DivergedError"), ([*RUN, "--ranks", "0"], 2, "UsageError"), ([*RUN, "--watch", "norms"], 2, "UsageError")],
    "summary": [(["summary", "nothing"], 2, "UsageError"), (["summary"], 2, "UsageError"), (["summary", "mnist", "--variant", "x"], 2, "UsageError"),
                (["summary", "mnist", "--variant", "ln", "--set", "source=mnist"], 4, "DataMissingError")],
    "find-rate": [(["find-rate", "nothing"], 2, "UsageError"), (["find-rate", "mnist", "--from", "2"], 2, "UsageError"),
                  (["find-rate", "mnist", "--updates", "3"], 2, "UsageError"), (["find-rate", "mnist", "--variant", "ln", "--backend", "cupy", "--set", "source=made"], 3, "BackendError"),
                  (["find-rate", "mnist", "--out", "/dev/null/x"], 1, "CheckpointError")],
    "report": [(["report", "nothing"], 1, "CheckpointError"), (["report"], 2, "UsageError"), (["report", "\x1b[31m"], 1, "CheckpointError")],
    "list": [(["list", "--plugin", "nothing"], 2, "UsageError"), (["list", "x"], 2, "UsageError")],
    "show": [(["show", "nothing"], 2, "UsageError"), (["show"], 2, "UsageError")],
    "doctor": [(["doctor", "--plugin", "nothing"], 2, "UsageError")],
    "selftest": [(["selftest", "--backend", "tpu"], 2, "UsageError"), (["selftest", "--repeats", "0"], 2, "UsageError")],
    "compile": [(["compile", "--march"], 2, "UsageError"), (["compile", "--out", "/dev/null/x"], 1, "KernelError")],
    "paper": [(["paper", "--runs", "nothing"], 1, "CheckpointError")],
    "compare": [(["compare", "nothing"], 2, "UsageError"), (["compare", "nothing", "more"], 4, "DataMissingError")],
    "keep": [(["keep", "nothing", "--as", "a"], 1, "CheckpointError"), (["keep", "nothing", "--as", "a/b"], 2, "UsageError")],
    "evaluate": [(["evaluate"], 2, "UsageError"), (["evaluate", "nothing"], 1, "CheckpointError")],
    "analyze": [(["analyze", "shift", "--seeds", "0"], 2, "UsageError"), (["analyze", "shift", "--updates", "x"], 2, "UsageError"),
                (["analyze", "geometry", "--backend", "cupy"], 3, "BackendError")],
    "bench": [(["bench", "ops", "--rounds", "0"], 2, "UsageError"), (["bench", "train", "--task", "nothing"], 2, "UsageError"),
              (["bench", "rnn", "--shape", "1"], 2, "UsageError"), (["bench", "attention", "--shape", "1"], 2, "UsageError")],
}
CASES = [pytest.param(*case, id=" ".join(case[0])) for cases in WRONG.values() for case in cases]


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch):
    monkeypatch.setattr("duoln.pictures.drawing.refusal", lambda: "pip install matplotlib")


@pytest.mark.parametrize(("words", "code", "name"), CASES)
def test_an_error_is_one_document(words, code, name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main([*words, *(["--json", "-"] if words[0] == "bench" else ["--json"])]) == code
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["class"], error["exit_code"]) == (name, code) and error["message"]
    assert error["message"].split("\n")[0][:40] in captured.err or "\x1b" in error["message"]
    assert "Traceback" not in captured.err


def test_every_command_with_the_option_is_here():
    def having(parser):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    if any("--json" in a.option_strings for a in _all(sub)):
                        yield name

    def _all(parser):
        for action in parser._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    yield from _all(sub)

    assert {*having(build_parser()), "evaluate"} == set(WRONG)  # evaluate has it in its own part


@pytest.mark.parametrize(("words", "wanted"), [
    (["list", "--json"], True), (["list", "--js"], True), (["list"], False), ([], False), (["list", "-"], False), (["list", "--"], False),
    (["bench", "ops", "--json", "-"], True), (["bench", "ops", "--json=-"], True), (["bench", "ops", "--json", "f"], False),
    (["bench", "ops", "--json"], False), (["run", "x", "--out", "json"], False)])
def test_whether_it_is_wanted(words, wanted):
    assert wants_json(words) is wanted


def test_without_it_stdout_is_empty(capsys):
    assert main(["run", "nothing"]) == 2 and capsys.readouterr().out == ""


def test_an_interrupted_run_gives_its_results_and_the_error(capsys, monkeypatch, tmp_path):
    queue = Trainer.queue

    def interrupted(trainer):
        os.kill(os.getpid(), signal.SIGINT)
        queue(trainer)

    monkeypatch.setattr(Trainer, "queue", interrupted)
    assert main([*RUN, "--epochs", "1", "--out", str(tmp_path / "r"), "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["results"][0]["updates"] == 1 and document["error"]["class"] == "Interrupted"
    assert document["error"]["exit_code"] == 130


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError("x"), 6), (ValueError("x"), 1), (SystemExit(0), 1),
                                             (RecursionError("x"), 1)])
def test_what_nobody_expects(error, code, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("duoln.tasks.registry.Registry.__init__", fail)
    assert main(["list", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["class"] == type(error).__name__ and captured.err


def test_a_result_is_not_followed_by_a_second_document(capsys):
    def run():
        console.put_json({"a": 1})
        raise ValueError("late")

    assert run_to_exit_code(run, ["list", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_help_is_no_error(capsys):
    assert main(["list", "--json", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: duoln list")
