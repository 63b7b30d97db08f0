"""What a run's log holds, to the last digit."""

import sys

import pytest

from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.tasks import Config, Dataset
from duoln.tasks.events import Evaluation, RunStart, Update


def _start(steps_per_epoch):
    return RunStart("line", "plain", Config(), Dataset("a line", "synthetic"), "numpy", 3, 40, steps_per_epoch, 17, ("a file",))


def test_entries_hold_what_was_told(numpy_backend, tmp_path):
    folder = RunFolder(tmp_path, numpy_backend)
    folder.on_start(_start(5))
    folder.on_memory(1234)
    folder.on_update(Update(4, 0.123456789, 1.23456789, 0.987654321))
    folder.on_evaluation(Evaluation(5, 0.123456789, {"valid_mse": 0.123456789}, 1.23456789))
    folder.on_end("interrupted", {"updates": 5})
    start, *others = read_log(tmp_path)
    assert {k: start[k] for k in ("task", "variant", "seed", "dataset", "first_update", "last_update", "steps_per_epoch", "parameters",
                                  "refused", "log_every")} == {
        "task": "line", "variant": "plain", "seed": 0, "dataset": {"name": "a line", "provenance": "synthetic"}, "first_update": 3,
        "last_update": 40, "steps_per_epoch": 5, "parameters": 17, "refused": ["a file"], "log_every": 1}
    assert others == [
        {"event": "memory", "step_bytes": 1234},
        {"event": "update", "update": 4, "loss": 0.123456789, "gradient_norm": 0.987654321, "wall_s": 1.234568},
        {"event": "evaluation", "update": 5, "epoch": 0.123457, "valid_mse": 0.123456789, "wall_s": 1.235},
        {"event": "end", "status": "interrupted", "updates": 5}]
    assert not (tmp_path / "result.json").exists()  # of a run that is done only


@pytest.mark.parametrize(("steps_per_epoch", "logged"), [(1000, list(range(1, 31))), (1001, [10, 20, 30])])
def test_of_long_epochs_every_tenth_step_is_logged(steps_per_epoch, logged, numpy_backend, tmp_path):
    folder = RunFolder(tmp_path, numpy_backend)
    folder.on_start(_start(steps_per_epoch))
    for step in range(1, 31):
        folder.on_update(Update(step, 0.5, 0.1, 0.2))
    folder.on_end("done", {"updates": 30})
    assert [e["update"] for e in read_log(tmp_path) if e["event"] == "update"] == logged
    assert (tmp_path / "result.json").read_text() == '{\n  "updates": 30\n}\n'


def test_a_command_line_of_bytes_that_are_no_utf_8(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["duoln", "run", "--out", "caf\udce9"])
    folder = RunFolder(tmp_path, numpy_backend)
    folder.on_start(_start(5))
    folder.on_memory(1)
    folder.close()
    start, memory = read_log(tmp_path)
    assert start["argv"] == ["run", "--out", r"caf\udce9"] and memory["step_bytes"] == 1
    RunFolder(tmp_path, numpy_backend).close()
