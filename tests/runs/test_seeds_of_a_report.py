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
    lengths = [json.loads((tmp_path / f"{VARIANT}-seed{k}" / "result.json").read_text())["steps"] for k in range(3)]
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


def test_equal_lengths_have_no_range(seeds, capsys):
    shutil.rmtree(seeds / f"{VARIANT}-seed0")
    assert main(["report", str(seeds), "--by", "seed", "--markdown"]) == 0
    assert " | 2 | 32 | 240 | " in capsys.readouterr().out.splitlines()[2]


def test_a_page_has_them(seeds, capsys):
    assert main(["report", str(seeds), "--by", "seed", "--html", str(seeds / "page.html")]) == 0
    assert "240-360" in (seeds / "page.html").read_text()
