"""Where each claim stands: the contents of the paper, joined with tasks, run folders and findings."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest

from duoln.cli import console, main
from duoln.errors import CheckpointError
from duoln.plugins.paper.contents import ENTRIES
from duoln.plugins.paper.evidence import KEPT
from duoln.plugins.paper.rules import Answer, Figure
from duoln.plugins.paper.standing import Standing, standings
from duoln.tasks.registry import Broken, Registry

ONLY_MNIST = SimpleNamespace(tasks=Registry(["mnist"]).tasks, broken=[])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of one smoke run of two variants."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUOLN_OFFLINE", "1")
        assert main(["run", "mnist", "--preset", "smoke", "--variant", "bn,ln", "--backend", "numpy",
                     "--epochs", "2", "--out", str(folder / "runs" / "a")]) == 0
    return folder / "runs"


@pytest.fixture
def runs(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


def _faster(*folders, registry=ONLY_MNIST):
    """The claim of figure 6 on batch 128, and what was left out."""
    rows, refused = standings(registry, folders)
    return next(row for row in rows if row.entry.task == "mnist"), refused


def _change(run, key, value):
    config = json.loads((run / "config.json").read_text())
    config["config"][key] = value
    (run / "config.json").write_text(json.dumps(config))


# Runs -------------------------------------------------------------------------------------------------------

def test_without_runs_nothing_is_decided():
    row, refused = _faster()
    assert refused == [] and row.verdict == "not measured" and row.so_far == ""
    assert row.missing == "no run of ln (batch_size 128), bn (batch_size 128)"
    assert row.commands == ["duoln run mnist --preset paper --variant ln,bn --set batch_size=128"]
    draw = next(row for row in standings(ONLY_MNIST, [])[0] if row.entry.task == "draw")
    assert draw.missing == "no plug-in draw is loaded" and draw.commands == []
    broken = SimpleNamespace(tasks={}, broken=[Broken("mnist", "duoln", "ImportError: no such thing")])
    assert _faster(registry=broken)[0].missing == "plug-in mnist is broken: ImportError: no such thing"


@pytest.mark.long
def test_a_run_is_shown_with_data_length_seeds_and_settings(runs):
    row, refused = _faster(runs)
    assert refused == [] and row.verdict == "too short to tell" and row.so_far.startswith("so far: it ")
    assert row.basis == ("made digits, synthetic", "30 of 25,740 updates (0.12%)", "1 seed")
    assert row.differs.keys() == {"epochs", "hidden", "rows"} and row.differs["epochs"] == (2, 60)
    assert [f.what for f in row.measured] == ["train NLL that all reach", *["updates until there"] * 2] and row.kind == "substitute"


def test_five_seeds_are_a_verdict(runs):
    for seed in range(1, 5):
        for variant in ("bn", "ln"):
            _change(shutil.copytree(runs / "a" / variant, runs / f"b{seed}" / variant), "seed", seed)
    once, five = _faster(runs / "a")[0], _faster(runs)[0]
    assert five.verdict == once.so_far.removeprefix("so far: it ").removesuffix(" (1 seed)") and five.so_far == ""
    assert five.basis[2] == "5 seeds" and [len(figure.values) for figure in five.measured] == [1, 5, 5]


@pytest.mark.parametrize(("holds", "seeds", "long_enough", "verdict", "so_far"), [
    (True, 5, True, "holds", ""), (False, 5, True, "does not hold", ""), (None, 5, True, "cannot be told", ""),
    (True, 3, True, "too short to tell", "so far: it holds (3 seeds)"), (None, 1, True, "too short to tell", "so far: it cannot be told (1 seed)"),
    (False, 9, False, "too short to tell", "so far: it does not hold (9 seeds)")])
def test_five_seeds_of_enough_length_are_a_verdict(holds, seeds, long_enough, verdict, so_far):
    row = Standing(ENTRIES[0], ENTRIES[0].claims[0]).decided(Answer(holds, []), seeds, long_enough)
    assert (row.verdict, row.so_far) == (verdict, so_far)


def test_runs_of_two_settings_are_told(runs):
    _change(runs / "a" / "ln", "hidden", 65)
    assert _faster(runs)[0].missing == "no runs of one setting and seed that have the figures"


@pytest.mark.parametrize(("file", "content", "words"), [
    ("log.jsonl", '{"event": "start", "dataset": {"name": "made digits", "provenance": "synthetic"}}\n'
     '{"event": "evaluation", "update": 1, "epoch": 1, "wall_s": 1, "test_error": 1}\n'
     '{"event": "end", "status": "done", "updates": 1, "epochs": 1, "test_error": "low"}\n', "a number as test_error of the run's end"),
    ("config.json", "{", "config.json"), ("log.jsonl", None, "not a run folder"),
    ("config.json", '{"task": "mnist", "variant": "ln", "precision": "float32", "config": {"batch_size": 4, "seed": null}}', "a whole number as seed"),
    ("log.jsonl", '{"event": "start", "dataset": {"name": "x", "provenance": "stolen"}}\n'
     '{"event": "evaluation", "update": 1, "epoch": 1, "wall_s": 1}\n', "original, substitute, synthetic")])
def test_a_damaged_run_is_told_and_the_others_stay(runs, file, content, words):
    path = runs / "a" / "ln" / file
    path.unlink() if content is None else path.write_text(content)
    row, refused = _faster(runs / "a")
    assert [s.variant for s in row.settings] == ["bn"] and row.missing == "no run of ln (batch_size 128)"
    assert len(refused) == 1 and words in refused[0] and str(runs / "a" / "ln") in refused[0]


def test_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    for name, words in (("none", "nothing there"), ("file", "a file")):
        with pytest.raises(CheckpointError, match=words):
            standings(ONLY_MNIST, [tmp_path / name])


# Findings of duoln analyze ------------------------------------------------------------------------------------

def _finding(folder, summary, time="2026-01-01T00:00:00+00:00"):
    folder.mkdir(exist_ok=True)
    content = json.loads((KEPT / "invariance.json").read_text())
    (folder / "invariance.json").write_text(json.dumps({**content, "summary": summary, "time": time}))


def _table_1(*folders):
    rows, refused = standings(ONLY_MNIST, folders)
    return next(row for row in rows if row.entry.where == "table 1"), refused


def test_the_newest_finding_counts(tmp_path):
    _finding(tmp_path / "a", "newer", "2026-02-01T00:00:00+00:00")
    _finding(tmp_path / "b", "older")
    row, _ = _table_1(tmp_path)
    assert row.finding.content["summary"] == "newer" and row.verdict == "holds" and row.commands == ["duoln analyze invariance"]
    assert _table_1()[0].missing == "no finding kept: duoln analyze invariance --out runs/theory"


@pytest.mark.parametrize("content", ["{", '{"analysis": "invariance", "summary": 3, "time": "x"}',
                                     '{"analysis": "invariance", "summary": "old", "time": "x", "cells": [1]}'])
def test_a_damaged_finding_is_told(tmp_path, content):
    (tmp_path / "invariance.json").write_text(content)
    row, refused = _table_1(tmp_path)
    assert len(refused) == 1 and "invariance.json" in refused[0] and row.finding is None


# Words --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("values", "words"), [([0.25], "ln 0.25"), ([0.25, 0.75, 0.5], "ln 0.50 (0.25 to 0.75)"), ([0.5, math.inf, 0.25], "ln 0.50 (0.25 to inf)")])
def test_figures_are_medians_with_their_range(values, words):
    assert Figure("figure", "ln", values, ".2f").words(console.number) == words
