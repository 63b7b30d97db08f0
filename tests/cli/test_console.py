"""The display of a run: a line every few seconds in a pipe, a bar on a terminal."""

import io
from types import SimpleNamespace

import pytest

from duoln.cli import console
from duoln.tasks import Column, Config, Dataset
from duoln.tasks.events import Evaluation, RunStart, Step

COLUMNS = (Column("test_nll", "test NLL"), Column("test_error", "test error", ".2%"))


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when the test moves it."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def _seen(monkeypatch, terminal):
    out = io.StringIO()
    talk = console._Plain(out)
    talk._width, talk._force_terminal, talk.is_interactive, talk._color_system = 100, terminal, terminal, None
    monkeypatch.setattr(console, "talk", talk)
    return out


def _start(provenance="synthetic", first=0, refused=()):
    return RunStart("mnist", "ln", Config(), Dataset("made digits", provenance), "numpy", first, 30, 15, 12_345, refused)


def _lines(out):
    lines = out.getvalue().splitlines()
    out.seek(0)
    out.truncate()
    return lines


def test_lines_through_a_pipe(clock, monkeypatch):
    out, display = _seen(monkeypatch, terminal=False), console.ProgressDisplay(COLUMNS)
    display.on_start(_start(first=4, refused=("a file: damaged",)))
    display.on_memory(2_000_000)
    assert _lines(out) == ["ln: refused a file: damaged", "ln: goes on after step 4",
                           "ln: 12,345 weights; a step takes about 2 MB of memory"]
    clock.now += 4.9
    display.on_step(Step(5, 0.5, 1.0, 0.1))
    assert _lines(out) == []
    clock.now += 0.1
    display.on_step(Step(6, 0.25, 1.0, 0.1))
    display.on_step(Step(7, 0.25, 1.0, 0.1))
    assert _lines(out) == ["ln: step 6/30  loss 0.2500 [made digits, synthetic]"]
    clock.now += 4.0
    display.on_evaluation(Evaluation(15, 1.0, {"test_nll": 0.00001, "test_error": 0.0123}, 1.0))
    assert _lines(out) == ["ln: epoch 1  test NLL 1.0e-05  test error 1.23% [made digits, synthetic]"]
    clock.now += 4.0
    display.on_step(Step(16, 0.25, 1.0, 0.1))  # the listener has just received an evaluation
    display.on_end("done", {})
    assert _lines(out) == []


def test_data_of_the_literature_have_no_label(clock, monkeypatch):
    out, display = _seen(monkeypatch, terminal=False), console.ProgressDisplay(COLUMNS)
    display.on_start(_start("original"))
    display.on_evaluation(Evaluation(15, 0.5, {}, 1.0))
    assert _lines(out) == ["ln: epoch 0.5  test NLL -  test error -"]


def test_a_bar_on_a_terminal(clock, monkeypatch):
    out, display = _seen(monkeypatch, terminal=True), console.ProgressDisplay(COLUMNS)
    display.on_start(_start(first=4))
    bar = display._bar
    try:
        assert bar.live.is_started and (bar.tasks[0].completed, bar.tasks[0].total) == (4, 30)
        display.on_step(Step(5, 0.5, 1.0, 0.1))
        assert bar.tasks[0].completed == 4  # not more than ten times a second
        clock.now += 0.1001
        display.on_step(Step(6, 0.25, 1.0, 0.1))
        assert bar.tasks[0].completed == 6 and "loss 0.2500 [made digits, synthetic]" in bar.tasks[0].description
    finally:
        display.on_end("done", {})
    assert not bar.live.is_started and display._bar is None
    assert "loss 0.2500 [made digits, synthetic]" in out.getvalue()


def test_no_bar_of_a_run_that_has_ended(clock, monkeypatch):
    _seen(monkeypatch, terminal=True)
    display = console.ProgressDisplay(COLUMNS)
    display.on_start(_start(first=30))
    assert display._bar is None


@pytest.mark.parametrize(("value", "form", "text"), [
    (0.5, ".4f", "0.5000"), (5e-4, ".4f", "0.0005"), (4.9e-4, ".4f", "4.9e-04"), (-1e-5, ".4f", "-1.0e-05"), (0.0, ".4f", "0.0000"),
    (1e-5, ".2%", "0.00%"), (3, ".2f", "3.00"), (None, ".4f", "-"), ("x", ".4f", "-")])
def test_numbers(value, form, text):
    assert console.number(value, form) == text
