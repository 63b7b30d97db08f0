"""Sides of several comparisons start together; one that a comparison can do without may be missing."""

import sys

import pytest

from duoln.bench import turns
from duoln.bench.survey import cells, comparisons, steps
from duoln.bench.survey.comparisons import Comparison, time_comparisons
from duoln.bench.turns import Entry, Side
from duoln.errors import DuolnError
from duoln.testing import check_error

events = []


class _Side:
    """A side in the place of a process: it says when it starts, is ready and is closed."""

    def __init__(self, entry):
        self.name, self.checked, self.samples = entry.name, entry.checked, []
        self.facts = {"checks": entry.asked.get("checks", [1.0]), "warmups": 0}
        self._breaks = entry.asked.get("breaks", False)
        events.append(f"start {self.name}")

    def ready(self, seconds):
        assert seconds <= 50
        events.append(f"ready {self.name}")
        if self._breaks:
            raise DuolnError(f"[bench] {self.name} stopped")

    def runs(self, count):
        events.append(f"run {self.name}")
        return [2.0 if self.name.startswith("duoln") else 4.0] * count

    def close(self):
        events.append(f"close {self.name}")


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setattr(comparisons, "Side", _Side)
    monkeypatch.setattr(comparisons.os, "cpu_count", lambda: 4)
    events.clear()
    return lambda *wanted: list(time_comparisons(wanted, 1, 2, 50.0, lambda line: None))


def _pair(k, **peer):
    return Comparison(f"work {k}", [Entry(f"duoln {k}", {}), Entry(f"peer {k}", peer)], optional=[f"peer {k}"])


def test_as_many_sides_start_together_as_there_are_cores(timed):
    results = timed(*map(_pair, "123"))
    assert [event for event in events if event.startswith("start")][:4] == events[:4]
    assert events.index("run duoln 1") > events.index("ready peer 2")  # nothing prepares itself beside what is timed
    assert events.index("start duoln 3") > events.index("close peer 2")
    assert [[row["ratio"] for row in t.rows] for t in results] == [[1.0, 0.5]] * 3 and not any(t.missing for t in results)
    assert sum(event.startswith("close") for event in events) == 6


def test_a_peer_that_cannot_run_is_missing_and_the_rest_is_timed(timed):
    [result] = timed(_pair("1", breaks=True))
    assert [row["name"] for row in result.rows] == ["duoln 1"] and result.missing == {"peer 1": "[bench] peer 1 stopped"}


def test_without_our_side_there_is_nothing_to_time(timed):
    broken = Comparison("work 1", [Entry("duoln 1", {"breaks": True}), Entry("peer 1", {})], optional=["peer 1"])
    first, second = timed(broken, _pair("2"))
    assert not first.rows and first.missing == {"duoln 1": "[bench] duoln 1 stopped"}
    assert len(second.rows) == 2 and "run peer 1" not in events


def test_a_peer_that_computes_something_else_is_not_timed(timed):
    [result] = timed(_pair("1", checks=[7.0]))
    assert not result.rows and "do not compute the same thing" in result.missing["work 1"]


def test_a_side_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", "import time; time.sleep(3600)"])
    side = Side(Entry("a compiler", {}))
    check_error(DuolnError, lambda: side.ready(0.1), "a compiler was not ready after its time")
    assert side._process.poll() is not None


def test_what_the_cells_and_steps_are_compared_with():
    def sides(comparison):
        return [entry.name for entry in comparison.entries], list(comparison.optional)

    names, optional = sides(cells.comparison(*cells.COMPILED, "cupy", ["torch"]))
    assert names == ["duoln", "our products alone", "duoln, by steps", "torch loop", "torch.nn.LSTM, no norm", "torch loop, compiled"]
    assert optional == names[1:] and cells.COMPILED in cells.WANTED
    assert sides(cells.comparison("gru", cells.Shape(1, 2, 3, 4), False, "numpy", []))[0] == ["duoln", "our products alone"]
    names, optional = sides(steps.comparison(steps.WANTED[0], "cupy", ["torch"]))
    assert names == ["duoln, eager", "duoln, compiled", "torch", "torch, compiled"] and optional == names[1:]
