"""The table of results: levels, and terminals that are narrow."""

import pytest
from runs.reading import Reading

from duoln.cli import console
from duoln.runs.series import Range
from duoln.tasks import Dataset
from duoln.tasks.events import Evaluation


def test_levels_stand_once_below_the_table(capsys):
    result = {"variant": "ln", "updates": 20, "batch_size": 8, "epochs": 1, "valid_error": 0.5, "test_error": 0.25, "chance": 0.75,
              "seconds_per_epoch": 1.0, "seconds_per_update": 0.0123}
    console.show_results(Reading(), Dataset("made", "original"), [result, {**result, "variant": "none"}])
    stdout = capsys.readouterr().out
    assert stdout.count("by chance") == 1 and "by chance 0.75" in stdout and stdout.count("0.2500") == 2


@pytest.mark.parametrize("width", ["40", "25", "12"])
def test_no_word_is_cut_however_narrow_the_terminal_is(width, capsys, monkeypatch):
    result = {"updates": 20, "batch_size": 8, "epochs": 1, "valid_error": 0.5, "test_error": 0.25, "chance": 0.75, "seconds_per_epoch": 1.0,
              "seconds_per_update": 0.0123}
    names = ["none", "bn", "bn-everywhere", "ln", "ln-gain-0.1"]
    monkeypatch.setenv("COLUMNS", width)
    console.show_results(Reading(), Dataset("made", "synthetic"), [{**result, "variant": name} for name in names])
    stdout = capsys.readouterr().out
    assert "\u2026" not in stdout and all(stdout.count(word) >= 1 for word in (*names, "synthetic", "valid", "0.2500", "50.00%", "12.3"))


def test_the_figure_of_several_runs_has_its_range():
    assert console.number(Range(0.02, 0.01, 0.04), ".1%") == "2.0%\n1.0%-4.0%"


def test_rows_of_one_variant_are_told_apart(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = {"variant": "ln", "updates": 20, "batch_size": 8, "epochs": 1, "valid_error": 0.5, "test_error": 0.25, "chance": 0.75,
              "seconds_per_epoch": 1.0, "seconds_per_update": 0.0123}
    console.show_results(Reading(), Dataset("made", "original"), [result, result], {"learning_rate": ["0.001", "0.002"]})
    stdout = capsys.readouterr().out
    assert "0.001" in stdout and "0.002" in stdout and "\u2026" not in stdout


def test_a_task_that_is_of_no_paper_claims_nothing(capsys):
    class Own(Reading):
        paper, references = "", {}

    result = {"variant": "ln", "updates": 20, "batch_size": 8, "epochs": 0.574713, "valid_error": 0.5, "test_error": 0.25,
              "seconds_per_epoch": 1.0, "seconds_per_update": 0.0123}
    console.show_results(Own(), Dataset("made", "original"), [result])
    stdout = capsys.readouterr().out
    assert "paper" not in stdout and "()" not in stdout and "20 updates" in stdout and "0.57" not in stdout


def test_progress_along_updates_names_updates(capsys):
    display = console.ProgressDisplay(Reading.columns, Reading.x_axis)
    display.on_evaluation(Evaluation(200, 0.574713, {"valid_error": 0.5}, 1.0))
    stderr = capsys.readouterr().err
    assert "update 200" in stderr and "epoch" not in stderr
