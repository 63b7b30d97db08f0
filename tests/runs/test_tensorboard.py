"""`--log-to tensorboard`: the file of events has every update and evaluation, and a missing package is told."""

import json
import sys
from importlib.util import find_spec

import pytest
from small_runs import Line

from duoln.cli.run import run_task

WORDS = ["--backend", "numpy", "--log-to", "tensorboard"]


def _events(folder):
    """The scalars and texts of a folder's files of events, as (name, step, value)."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):  # a record: its length, a checksum of 4 bytes, the event, a checksum
            length = int.from_bytes(content[at:at + 8], "little")
            event = Event.FromString(content[at + 12:at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value if value.HasField("simple_value") else str(value.tensor.string_val[0])


@pytest.mark.skipif(find_spec("tensorboardX") is None, reason="tensorboardX is not installed")
def test_the_events_are_those_of_the_log(tmp_path):
    assert run_task(Line, [*WORDS, "--seed", "0,1", "--out", str(tmp_path)], preset="smoke") == 0
    for name in ("plain-seed0", "fast-seed1"):
        log = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        events = list(_events(tmp_path / name))
        for key, event, tag in (("loss", "update", "loss"), ("gradient_norm", "update", "gradient_norm"), ("valid_mse", "evaluation", "valid_mse")):
            expected = [(entry["update"], pytest.approx(entry[key], rel=1e-6)) for entry in log if entry["event"] == event]
            assert [(step, value) for name_of, step, value in events if name_of == tag] == expected != []
        [settings] = [value for tag, _, value in events if tag.startswith("settings")]
        assert "learning_rate: " in settings and f"seed: {name[-1]}" in settings and "a line, synthetic" in settings


@pytest.mark.long
@pytest.mark.skipif(find_spec("tensorboardX") is None, reason="tensorboardX is not installed")
def test_a_resume_in_the_same_second_replaces_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.5e9)
    words = [*WORDS, "--out", str(tmp_path), "--epochs"]
    assert run_task(Line, [*words, "1"], preset="smoke") == 0
    for epochs in ("2", "2", "3"):
        assert run_task(Line, [*words, epochs, "--resume", "auto"], preset="smoke") == 0
    losses = [step for tag, step, _ in _events(tmp_path / "plain") if tag == "loss"]
    assert losses == list(range(1, 16))  # in the order of the names, which TensorBoard reads by


def test_a_missing_package_is_told_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "duoln.runs.tensorboard", raising=False)
    assert run_task(Line, [*WORDS, "--out", str(tmp_path / "r")], preset="smoke") == 2
    assert "pip install tensorboardX" in capsys.readouterr().err and not (tmp_path / "r").exists()


@pytest.mark.long
@pytest.mark.skipif(find_spec("tensorboardX") is None, reason="tensorboardX is not installed")
def test_a_listener_that_fails_costs_no_run(tmp_path, monkeypatch, capsys):
    from duoln.runs.tensorboard import TensorBoard

    monkeypatch.setattr(TensorBoard, "on_update", lambda self, event: 1 / 0)
    assert run_task(Line, [*WORDS, "--out", str(tmp_path)], preset="smoke") == 0
    assert "--log-to tensorboard: the listener's on_update raised ZeroDivisionError" in capsys.readouterr().err
