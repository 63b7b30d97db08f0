"""The display of a run: a line every few seconds in a pipe, a bar on a terminal."""

import io
import sys
from types import SimpleNamespace

import pytest

from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.tasks import Column, Config, Dataset, Task
from duoln.tasks.events import Evaluation, RunStart, Update

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
    assert _lines(out) == ["ln: refused a file: damaged", "ln: goes on after update 4",
                           "ln: 12,345 weights; an update takes about 2 MB of memory"]
    clock.now += 4.9
    display.on_update(Update(5, 0.5, 1.0, 0.1))
    assert _lines(out) == []
    clock.now += 0.1
    display.on_update(Update(6, 0.25, 1.0, 0.1))
    display.on_update(Update(7, 0.25, 1.0, 0.1))
    assert _lines(out) == ["ln: update 6/30  loss 0.2500"]
    clock.now += 4.0
    display.on_evaluation(Evaluation(15, 1.0, {"test_nll": 0.00001, "test_error": 0.0123}, 1.0))
    assert _lines(out) == ["ln: epoch 1  test NLL 1.0e-05  test error 1.23%"]
    clock.now += 4.0
    display.on_update(Update(16, 0.25, 1.0, 0.1))  # the listener has just received an evaluation
    display.on_end("done", {})
    assert _lines(out) == []


def test_a_bar_on_a_terminal(clock, monkeypatch):
    out, display = _seen(monkeypatch, terminal=True), console.ProgressDisplay(COLUMNS)
    display.on_start(_start(first=4))
    bar = display._bar
    try:
        assert bar.live.is_started and (bar.tasks[0].completed, bar.tasks[0].total) == (4, 30)
        display.on_update(Update(5, 0.5, 1.0, 0.1))
        assert bar.tasks[0].completed == 4  # not more than ten times a second
        clock.now += 0.1001
        display.on_update(Update(6, 0.25, 1.0, 0.1))
        assert bar.tasks[0].completed == 6 and "loss 0.2500" in bar.tasks[0].description
    finally:
        display.on_end("done", {})
    assert not bar.live.is_started and display._bar is None
    assert "loss 0.2500" in out.getvalue()


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


# Tasks of the paper and others ------------------------------------------------------------------------

class Own(Task):
    """A task of no paper; its curves are drawn against updates."""

    name, title, x_axis = "own", "My task", "update"
    variants = {"none": {}, "ln": {}}  # noqa: RUF012
    columns = COLUMNS


class OwnBest(Own):
    references = {"ln": "0.1 in 2019"}  # noqa: RUF012


class Published(OwnBest):
    paper = "section 6.6"


def _table(monkeypatch, task, width=100, dataset=Dataset("points", "original"), **changes):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    result = {"variant": "ln", "updates": 100, "epochs": 0.574713, "batch_size": 8, "test_nll": 0.5, "test_error": 0.25, "seconds_per_epoch": 1.0,
              "seconds_per_update": 0.0123}
    console.show_results(task, dataset, [{**result, "variant": "none"}, {**result, **changes}])
    return out.getvalue()


def test_a_task_of_no_paper_has_no_claims_of_one(monkeypatch):
    seen = _table(monkeypatch, Own())
    assert seen.splitlines()[0].strip() == "My task" and "paper" not in seen and "reference" not in seen
    assert "paper" not in _table(monkeypatch, Own(), width=40)


def test_times_are_of_what_the_curves_are_drawn_against(monkeypatch):
    class ByEpoch(Own):
        x_axis = "epoch"

    assert "ms/update" in _table(monkeypatch, Own()) and " 12.3 " in _table(monkeypatch, Own())
    assert "s/epoch" in _table(monkeypatch, ByEpoch()) and "1.00" in _table(monkeypatch, ByEpoch())


def test_a_long_remark_is_broken_between_words(monkeypatch):
    out = _seen(monkeypatch, terminal=True)
    console.talk._width = 30
    path = "/a/path/that/is/longer/than/the/terminal/is/wide"
    console.say(f"backend: numpy on a CPU: no cupy (ImportError), no mlx (ImportError); {path}\nshort  line")
    lines = out.getvalue().splitlines()
    assert lines == ["backend: numpy on a CPU: no", "  cupy (ImportError), no mlx", "  (ImportError);", f"  {path}", "short  line"]
    out = _seen(monkeypatch, terminal=False)
    console.say("a remark for a file, which has no width " * 5)
    assert len(out.getvalue().splitlines()) == 1


@pytest.mark.parametrize(("task", "heading"), [(OwnBest, "reference"), (Published, "the paper's claim")])
def test_references_are_called_what_they_are(monkeypatch, task, heading):
    wide, narrow = _table(monkeypatch, task()), _table(monkeypatch, task(), width=50)
    assert heading in wide and "0.1 in 2019" in wide
    assert f"  {heading}: 0.1 in 2019" in [line.rstrip() for line in narrow.splitlines()]
    assert ("(section 6.6)" in wide) == (task is Published)


def test_beside_made_data_no_claim_of_a_paper_stands(monkeypatch):
    made = _table(monkeypatch, Published(), dataset=Dataset("made digits", "synthetic"))
    assert "0.1 in 2019" not in made and "the paper's claim" not in made
    assert "synthetic data: not comparable with the paper" in " ".join(made.split()) and "section 6.6" in made
    own = _table(monkeypatch, OwnBest(), dataset=Dataset("made digits", "synthetic"))  # a reference of no paper stays
    assert "0.1 in 2019" in own and "synthetic data:" not in own


def test_where_the_axis_is_updates_they_are_told_and_not_parts_of_an_epoch(monkeypatch):
    seen = _table(monkeypatch, Own())
    assert "data: points, batch 8, 100 updates" in seen and "0.57" not in seen
    unlike = _table(monkeypatch, Own(), updates=50)
    assert " updates ┃" in unlike and "│      50 │" in unlike and "0.57" not in unlike


@pytest.mark.parametrize(("x_axis", "when"), [("epoch", "epoch 0.575"), ("update", "update 100")])
def test_an_evaluation_tells_its_place_on_the_axis(clock, monkeypatch, x_axis, when):
    out, display = _seen(monkeypatch, terminal=False), console.ProgressDisplay((), x_axis)
    display.on_start(_start("original"))
    display.on_evaluation(Evaluation(100, 0.574713, {}, 1.0))
    assert [line.strip() for line in _lines(out)] == [f"ln: {when}"]


# Tables -----------------------------------------------------------------------------------------------

HEADINGS = ("case", "side", "time", "+-", "duoln / side", "")
ROWS = [("fwd 4096x1000", "torch as installed", "733 us", "1%", "1.00", "least"),
        ("fwd+bwd 4096x1000", "duoln", "1.86 ms", "12%", "0.9 (0.8)", "")]
LONG = "it is for weights of at least 65536 values, and this one has 9"


def _drawn(monkeypatch, width, table):
    out = console._Plain(io.StringIO())
    out._width = width
    monkeypatch.setattr(console, "talk", out)
    console.show(table)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [*range(20, 121), 500])
def test_no_figure_is_cut(width, monkeypatch):
    text = _drawn(monkeypatch, width, RowsTable("Layer norm", HEADINGS, ROWS, whole=range(len(HEADINGS))))
    assert "\u2026" not in text and all(len(line) <= width for line in text.splitlines())
    assert width < 26 or all(cell in text for row in ROWS for cell in row)
    assert ("\u2503" in text) == (width >= 78), "a table if there is room for it"


@pytest.mark.parametrize("width", range(30, 121, 5))
def test_long_cells_are_broken_between_words(width, monkeypatch):
    text = _drawn(monkeypatch, width, RowsTable("Rules", ("operator", "numpy"), [("linear", "compiled"), ("matmul", LONG)]))
    assert "\u2026" not in text
    assert all(word in text for word in ("operator", "linear", "compiled", *LONG.split()))
    assert (LONG in text) == (width >= 3 + len("operator") + 3 + len(LONG) + 1)


def test_cells_of_several_lines(monkeypatch):
    rows = [("a", "0.5\n0.4-0.6"), ("b", "0.7")]
    wide, narrow = (_drawn(monkeypatch, width, RowsTable("t", ("name", "of-one-long-word"), rows)) for width in (60, 20))
    assert "0.4-0.6" in wide and "0.5, 0.4-0.6" not in wide
    assert "of-one-long-word: 0.5, 0.4-0.6" in " ".join(narrow.split()) and "\u2503" not in narrow
