"""A report by seed: the median and the range of all that differs between the seeds, their lengths too."""

import json
import shutil
from pathlib import Path

import pytest

from duoln.cli import main

KEPT = Path(__file__).parents[2] / "plugins" / "las" / "results" / "small"
"""Runs that patience ended after different numbers of updates."""
VARIANT = "decoder-swapped-state"
UPDATES = [360, 240, 240]


@pytest.fixture
def seeds(tmp_path):
    for k in range(3):
        shutil.copytree(KEPT / f"{VARIANT}-seed{k}", tmp_path / f"{VARIANT}-seed{k}")
    lengths = [json.loads((tmp_path / f"{VARIANT}-seed{k}" / "result.json").read_text())["updates"] for k in range(3)]
    assert lengths == UPDATES
    return tmp_path


def test_updates_are_the_median_and_the_range(seeds, capsys):
    assert main(["report", str(seeds), "--by", "seed", "--markdown"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith(f"| `{VARIANT}` | 3 | 32 | 240 (240-360) |")


@pytest.mark.parametrize("columns", ["200", "60"])
def test_a_terminal_shows_them_too(columns, seeds, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["report", str(seeds), "--by", "seed"]) == 0
    captured = capsys.readouterr()
    assert "240-360" in captured.out + captured.err


def _changed(folder, **words):
    """The files of a run, with other words in them."""
    for name in ("config.json", "result.json"):
        text = (folder / name).read_text()
        for old, new in words.values():
            text = text.replace(old, new)
        (folder / name).write_text(text)


def test_runs_of_a_task_that_is_not_installed_have_their_figures(seeds, capsys):
    shutil.move(seeds / f"{VARIANT}-seed2", seeds / "runs" / "spirals-1" / VARIANT)
    shutil.copytree(seeds / f"{VARIANT}-seed1", seeds / "runs" / "las-1" / VARIANT)
    _changed(seeds / "runs" / "spirals-1" / VARIANT, task=('"task": "las"', '"task": "spirals"'))
    assert main(["report", str(seeds / "runs"), "--json"]) == 0
    told = capsys.readouterr()
    assert [run["task"] for run in json.loads(told.out)["runs"]] == ["las", "spirals"]
    assert "task 'spirals' is not installed; the figures are those of its runs" in told.err
    assert main(["report", str(seeds / "runs" / "spirals-1")]) == 0
    assert "test per" in " ".join(capsys.readouterr().out.split())
    assert main(["keep", str(seeds / "runs"), "--as", "x"]) == 2
    assert "expected runs of one task, found las, spirals" in capsys.readouterr().err


def test_a_table_has_no_column_of_what_differs_only_from_another_table(seeds, capsys):
    _changed(seeds / f"{VARIANT}-seed2", data=('"substitute"', '"original"'), setting=('"batch_size": 32', '"batch_size": 32, "lines": 7'))
    assert main(["report", str(seeds), "--markdown"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| variant"))
    assert first.startswith("| variant | run | seed | batch |") and second.startswith("| variant | run | batch |")


def test_equal_lengths_have_no_range(seeds, capsys):
    shutil.rmtree(seeds / f"{VARIANT}-seed0")
    assert main(["report", str(seeds), "--by", "seed", "--markdown"]) == 0
    assert " | 2 | 32 | 240 | " in capsys.readouterr().out.splitlines()[2]


@pytest.mark.long
def test_a_page_has_them(seeds, capsys):
    assert main(["report", str(seeds), "--by", "seed", "--html", str(seeds / "page.html")]) == 0
    assert "240-360" in (seeds / "page.html").read_text()
