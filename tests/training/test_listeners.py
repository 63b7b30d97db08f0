"""A listener hears of a run, and cannot change it: neither by what it writes into an event, nor by the working folder."""

import json
import os
from types import SimpleNamespace

import pytest
from small_runs import VALUES, Line

import duoln
from duoln.cli.run import run_task
from duoln.tasks.boundary import IsolatedListener
from duoln.tasks.events import Listener


class Told(Line):
    """A task with given figures, one for each evaluation; the same object may train once."""

    def __init__(self):
        self._figures = iter(VALUES.values())

    def metrics(self, predict, split):
        return {"mse": next(self._figures)}


class Writing(Listener):
    """Writes into everything that it is told, as a dashboard does that counts in its own way."""

    def on_start(self, event):
        event.identity["host"] = "mine"

    def on_evaluation(self, event):
        event.values["valid_mse"] = 100.0 - event.update
        event.values["mine"] = event.update

    def on_end(self, status, result):
        result["valid_mse"] = 100.0
        result["mine"] = 7.0
        result.setdefault("changes", []).append("one of mine")


class Keeping(Listener):
    """Keeps what it is told."""

    def __init__(self):
        self.starts, self.values, self.results = [], [], []

    def on_start(self, event):
        self.starts.append(dict(event.identity))

    def on_evaluation(self, event):
        self.values.append(dict(event.values))

    def on_end(self, status, result):
        self.results.append(dict(result))


@pytest.fixture
def trained(numpy_backend, tmp_path):
    def train(name, *listeners, **words):
        run = duoln.tasks.train(Told(), "plain", backend=numpy_backend, out=tmp_path / name, patience=2, epochs=6,
                          listeners=listeners, **words)
        log = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        return SimpleNamespace(figures={key: value for key, value in run.figures.items() if "seconds" not in key},
                               values=[entry["valid_mse"] for entry in log if entry["event"] == "evaluation"],
                               result=json.loads((tmp_path / name / "result.json").read_text()))

    return train


def test_what_a_listener_writes_changes_neither_the_run_nor_what_others_hear(trained):
    alone, kept = trained("alone"), Keeping()
    assert alone.values == [3.0, 1.0, 2.0, 1.0] and alone.figures["valid_mse"] == 1.0
    heard = trained("heard", Writing(), kept, Writing())
    assert heard.figures == alone.figures and heard.values == alone.values
    assert heard.result.keys() == alone.result.keys() and heard.result["valid_mse"] == 1.0
    assert "host" not in kept.starts[0] and [v["valid_mse"] for v in kept.values] == alone.values
    assert all("mine" not in told for told in (*kept.values, *kept.results))
    trained("heard", resume=True)  # nothing of the listener's is in the checkpoint


def test_the_events_of_a_command_are_copies_too(tmp_path, monkeypatch):
    kept = Keeping()
    monkeypatch.setattr("duoln.tasks.registry.Registry.listeners", lambda self, say: [IsolatedListener(Writing()), IsolatedListener(kept)])
    assert run_task(Told, ["--backend", "numpy", "--epochs", "1", "--out", str(tmp_path)], preset="smoke") == 0
    assert [values["valid_mse"] for values in kept.values] == [3.0, 1.0] and "mine" not in kept.results[-1]


def test_listeners_hear_of_the_end_in_their_order_too(trained):
    heard = []

    class Named(Listener):
        def __init__(self, name):
            self.name = name

        def on_end(self, status, result):
            heard.append(self.name)

    trained("ordered", Named("first"), Named("second"))
    assert heard == ["first", "second"]


@pytest.mark.parametrize("event", ["on_start", "on_memory", "on_update", "on_evaluation", "on_end"])
def test_a_listener_that_changes_the_folder_leaves_the_run_in_its_own(event, numpy_backend, tmp_path, monkeypatch):
    class Wandering(Listener):
        pass

    setattr(Wandering, event, lambda self, *told: os.chdir(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = duoln.tasks.train(Told(), "plain", backend=numpy_backend, out="r", epochs=2, listeners=[Wandering()])
    assert run.figures["updates"] == 10 and os.getcwd() == str(tmp_path / "here")
    assert (tmp_path / "here" / "r" / "result.json").is_file() and not list((tmp_path / "elsewhere").iterdir())
