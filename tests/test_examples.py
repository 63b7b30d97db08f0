"""The examples run and learn, and the one that shows how to write a task passes the kit for tasks."""

import json
import runpy
import sys

import numpy as np
import pytest
from conftest import ON_NUMPY

from duoln import cli
from duoln.examples import own_operator, own_task, training_loop
from duoln.examples.own_task import Spirals
from duoln.examples.own_text import OwnText
from duoln.testing import check_op, check_task


@ON_NUMPY
def test_own_task_is_a_task(be):
    check_task(Spirals(), backend=be)


def test_own_task_learns_from_the_command_line(tmp_path, monkeypatch, capsys):
    """The file as a program, in this process."""
    monkeypatch.setattr(sys, "argv", ["own_task", "--json", "--out", str(tmp_path / "r")])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(own_task.__file__, run_name="__main__")
    errors = {r["variant"]: r["test_error"] for r in json.loads(capsys.readouterr().out)["results"]}
    assert errors["ln"] < 0.15


def test_the_training_loop_learns_digits():
    """Ten classes: a network that has learnt nothing errs on 90 % of them."""
    assert training_loop.main(updates=60) < 0.5


def test_own_operator_checks_itself_and_finds_the_least_value():
    assert own_operator.main() == pytest.approx(5, abs=1e-3)


def test_own_operator_on_every_backend(be, rng):
    rows = rng.standard_normal((3, 130))
    check_op(own_operator.l2_rows, [rows], lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), be, length=130)


# A text of one's own ------------------------------------------------------------------------------------

PROVERBS = "Many hands make light work.\r\nToo many cooks spoil the caf\u00e9 broth.\r\n" * 20


@pytest.fixture(scope="module")
def own_text(tmp_path_factory):
    """A folder with a text, and runs of both variants on it; the command knows the task."""
    folder = tmp_path_factory.mktemp("own_text")
    (folder / "text.txt").write_text(PROVERBS, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duoln.tasks.registry.find_task", lambda name, plugins=None: OwnText())
        assert cli.main(["run", "own_text", "--preset", "smoke", "--set", f"file={folder / 'text.txt'}", "--backend", "numpy",
                         "--out", str(folder / "runs")]) == 0
        yield folder


@pytest.mark.long
def test_own_text_is_a_task_and_refuses_what_is_no_text(own_text, tmp_path):
    (tmp_path / "text.txt").write_bytes((own_text / "text.txt").read_bytes())
    check_task(OwnText(), corpus=tmp_path, harmless=("cut in half", "without its last byte"))


@pytest.mark.long
def test_own_text_says_its_place_in_updates_and_of_no_paper(own_text, capsys):
    assert cli.main(["report", str(own_text / "runs"), "--out", str(own_text / "report")]) == 0
    stdout = capsys.readouterr().out
    assert "updates" in stdout and "ms/update" in stdout and "paper" not in stdout and "synthetic" not in stdout
    assert {"curves.png", "context.png"} <= {path.name for path in (own_text / "report").iterdir()}


def test_own_text_is_sampled(own_text):
    def sampled(name, *options):
        assert cli.main(["sample", str(own_text / "runs" / "ln"), "--out", str(own_text / name), *options]) == 0
        return (own_text / name).read_text(encoding="utf-8")

    assert sampled("a.txt", "--count", "40") == sampled("b.txt", "--count", "40") != sampled("c.txt", "--count", "40", "--seed", "1")
    assert 0 < len(sampled("d.txt", "--count", "9")) <= 9


def test_own_text_is_evaluated_on_another_text(own_text, capsys):
    (own_text / "other.txt").write_text("zq" * 200, encoding="utf-8")
    figures = []
    for text in ("text.txt", "other.txt"):
        assert cli.main(["evaluate", str(own_text / "runs" / "ln"), "--text", str(own_text / text), "--json"]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["bits"] < figures[1]["bits"] and {"task", "variant", "bits_first", "bits_last"} <= figures[0].keys()
