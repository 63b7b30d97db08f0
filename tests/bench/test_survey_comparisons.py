"""Sides of several comparisons start together; one that a comparison can do without may be missing."""

import json
import sys

import pytest
from conftest import PATIENCE

from duoln.bench import comparisons, timed_process, turns
from duoln.bench.comparisons import Comparison, time_comparisons
from duoln.bench.survey import cells, steps
from duoln.bench.turns import Entry, Side
from duoln.errors import DuolnError
from duoln.testing import check_error

events = []


class _Side:
    """A side in the place of a process: it says when it starts, is ready and is closed."""

    def __init__(self, entry):
        self.name, self.checked, self.samples, self.device_samples = entry.name, entry.checked, [], []
        self.facts = {"checks": entry.asked.get("checks", [1.0]), "warmups": 0}
        self._breaks, self._hangs = (entry.asked.get(what, False) for what in ("breaks", "hangs"))
        self.ended = False
        events.append(f"start {self.name}")

    def imported(self, seconds):
        assert seconds <= comparisons._IMPORT_SECONDS
        events.append(f"imported {self.name}")

    def ready(self, seconds):
        assert seconds <= 50
        events.append(f"ready {self.name}")
        if self._breaks:
            raise DuolnError(f"[bench] {self.name} stopped")

    def runs(self, count, seconds):
        events.append(f"run {self.name}")
        if self._hangs:
            self.ended = True
            raise DuolnError(f"[bench] {self.name} gave no answer in its time")
        return [2.0 if self.name.startswith("duoln") else 4.0] * count

    def close(self):
        events.append(f"close {self.name}")


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setattr(comparisons, "Side", _Side)
    monkeypatch.setattr(comparisons.os, "cpu_count", lambda: 4)
    events.clear()
    return lambda *wanted: list(time_comparisons(wanted, 1, 2, 50.0))


def _pair(k, **peer):
    return Comparison(f"work {k}", [Entry(f"duoln {k}", {}), Entry(f"peer {k}", peer)], lambda row: {})


def test_as_many_sides_start_together_as_there_are_cores(timed):
    results = timed(*map(_pair, "123"))
    assert [event for event in events if event.startswith("start")][:4] == events[:4]
    assert events.index("run duoln 1") > events.index("ready peer 2")  # nothing prepares itself beside what is timed
    assert events.index("start duoln 3") > events.index("close peer 2")
    assert events.index("ready duoln 1") > events.index("imported peer 2")  # patience begins when all have loaded their libraries
    assert [[row["ratio"] for row in t.rows] for t in results] == [[1.0, 0.5]] * 3 and not any(t.missing for t in results)
    assert sum(event.startswith("close") for event in events) == 6


def test_a_peer_that_cannot_run_is_missing_and_the_rest_is_timed(timed):
    [result] = timed(_pair("1", breaks=True))
    assert [row["name"] for row in result.rows] == ["duoln 1"] and result.missing == {"peer 1": "[bench] peer 1 stopped"}


def test_without_our_side_there_is_nothing_to_time(timed):
    broken = Comparison("work 1", [Entry("duoln 1", {"breaks": True}), Entry("peer 1", {})], lambda row: {})
    first, second = timed(broken, _pair("2"))
    assert not first.rows and first.missing == {"duoln 1": "[bench] duoln 1 stopped"}
    assert len(second.rows) == 2 and "run peer 1" not in events


def test_a_peer_that_computes_something_else_is_not_timed(timed):
    [result] = timed(_pair("1", checks=[7.0]))
    assert not result.rows and "do not compute the same thing" in result.missing["work 1"]


def test_a_peer_that_hangs_while_it_is_timed_is_missing_and_the_others_are_timed_again(timed):
    [result] = timed(_pair("1", hangs=True))
    assert [row["name"] for row in result.rows] == ["duoln 1"] and len(result.rows[0]["samples"]) == 1
    assert result.missing == {"peer 1": "[bench] peer 1 gave no answer in its time"}


LOADED, FACTS, SLEEPS = "print('\"imported\"', flush=True); ", "print('{}', flush=True); ", "import time; time.sleep(3600)"


@pytest.fixture
def side(monkeypatch):
    """A side whose process runs a line of Python."""
    monkeypatch.setattr(turns, "_LEAST_SECONDS", 0.1)
    sides = []

    def start(code):
        monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", code])
        sides.append(Side(Entry("a compiler", {})))
        return sides[-1]

    yield start
    for one in sides:
        one.close()


@pytest.mark.parametrize(("code", "wait"), [
    (SLEEPS, lambda side: side.imported(0.1)),
    (LOADED + SLEEPS, lambda side: (side.imported(), side.ready(0.1))),
    (LOADED + FACTS + SLEEPS, lambda side: (side.ready(), side.runs(1, 0.1)))], ids=["imports", "prepares", "runs"])
def test_a_side_that_takes_too_long_is_ended(side, code, wait):
    started = side(code)
    check_error(DuolnError, lambda: wait(started), "a compiler gave no answer in its time")
    assert started.ended


@pytest.mark.parametrize(("facts", "device", "events"), [
    ({"checks": [], "no_graph": None}, 0.25, {"event_seconds": 0.25, "event_samples": [0.25, 0.25]}),
    ({"checks": [], "no_graph": "KernelError: none"}, None, {"no_event_seconds": "KernelError: none"}),
    ({"checks": [], "no_graph": None}, None, {})])
def test_a_row_has_the_devices_own_seconds_or_why_not(side, facts, device, events):
    answer = json.dumps([[1.5, 1.5], device])
    started = side(f"{LOADED}print({json.dumps(facts)!r}, flush=True)\nwhile input(): print({answer!r}, flush=True)")
    started.ready()
    [row] = turns.take_turns([started], 2, 2)
    assert row["samples"] == [1.5, 1.5] and row["events"] == events


def test_a_side_that_was_ready_in_time_is_not_ended_because_another_took_all_of_it(side, monkeypatch):
    started = side(LOADED + FACTS + SLEEPS)
    started.imported()
    monkeypatch.setattr(turns, "_LEAST_SECONDS", float(PATIENCE))
    started.ready(-5.0)
    assert not started.ended


def test_what_the_cells_and_steps_are_compared_with():
    def sides(comparison):
        return [entry.name for entry in comparison.entries]

    assert sides(cells.comparison(*cells.COMPILED, "cupy", ["torch"])) == [
        "duoln", "our products alone", "duoln, by steps", "torch loop", "torch.nn.LSTM, no norm", "torch loop, compiled"]
    assert cells.COMPILED in cells.WANTED
    assert sides(cells.comparison("gru", cells.Shape(1, 2, 3, 4), False, "numpy", [])) == ["duoln", "our products alone"]
    mnist, *others = [sides(steps.comparison(step, "cupy", ["torch"])) for step in steps.WANTED]
    assert mnist == ["duoln, eager", "duoln, compiled", "torch", "torch, compiled"]
    assert others == [mnist[:3]] * 2  # the compiler of PyTorch takes minutes for DRAW


@pytest.mark.parametrize("step", steps.WANTED, ids=lambda step: step.name)
def test_the_steps_need_no_data_no_network_and_no_pooch(step, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", "1")
    monkeypatch.setenv("DUOLN_DATA", "")
    monkeypatch.setitem(sys.modules, "pooch", None)
    [asked] = {str(entry.asked["settings"]): entry.asked for entry in steps.comparison(step, "cupy", []).entries}.values()
    _, cfg, splits = timed_process.of_task(asked)
    assert cfg.source == "made" and splits.dataset.provenance == "synthetic" and cfg.batch_size == step.batch and splits.train(0)
