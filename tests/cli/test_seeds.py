"""`--seed 0,1,2`: a run for each seed and variant, in folders of their own, and a table of their median and range."""

import json
import os
import shlex
import signal
import sys
from types import SimpleNamespace

import pytest
from small_runs import Line

from duoln.cli import planned
from duoln.cli.run import run_task


@pytest.fixture
def line(tmp_path, capsys):
    """A command of the small task in one folder: its exit code, stdout and stderr, and the seeds of the folders."""
    def run(*words, task=Line):
        code = run_task(task, ["--backend", "numpy", "--out", str(tmp_path / "r"), *words], preset="smoke")
        seeds = {path.parent.name: json.loads(path.read_text())["config"]["seed"]
                 for path in (tmp_path / "r").glob("*/config.json")}
        return SimpleNamespace(code=code, seeds=seeds, **dict(zip(("out", "err"), capsys.readouterr(), strict=True)))

    return run


ALL = {f"{variant}-seed{seed}": seed for variant in Line.variants for seed in (0, 3)}


@pytest.mark.long
def test_each_seed_has_its_folder_and_the_table_its_median_and_range(line, tmp_path):
    made = line("--seed", "3,0", "--json")
    assert made.code == 0 and made.seeds == ALL, made.err
    results = json.loads(made.out)["results"]
    assert [(r["variant"], r["seed"]) for r in results] == [("plain", 3), ("fast", 3), ("plain", 0), ("fast", 0)]
    low, high = sorted(r["valid_mse"] for r in results if r["variant"] == "plain")
    assert f"{low:.4f}-{high:.4f}" in made.err and f"{(low + high) / 2:.4f}" in made.err
    [row] = [line.split("│")[1:4] for line in made.err.splitlines() if line.startswith("│ plain")]
    assert [cell.strip() for cell in row] == ["plain", "2", "synthetic"]
    assert "plain-seed3: epoch 1" in made.err
    assert made.err.splitlines().count("data: a line, synthetic") == 1
    assert (tmp_path / "r" / "curves.csv").read_text().splitlines()[1].startswith("plain (2 seeds),plain,")


def test_one_seed_is_a_setting_and_names_no_folder(line):
    assert line("--seed", "3").seeds == {"plain": 3, "fast": 3}


@pytest.mark.long
def test_a_resume_goes_on_with_all_seeds_or_with_those_named_and_may_add_some(line):
    assert line("--seed", "0,3").code == 0
    again = line("--resume", "auto", "--epochs", "4")
    assert again.code == 0 and again.seeds == ALL and again.err.count("goes on after update 15") == 4
    one = line("--resume", "auto", "--seed", "3")
    assert one.code == 0 and one.seeds == ALL and "seed0" not in one.err
    more = line("--resume", "auto", "--seed", "3,7")
    assert more.code == 0 and more.seeds == {**ALL, "plain-seed7": 7, "fast-seed7": 7}
    assert line("--resume", "auto").err.count("is finished") == 6


@pytest.mark.long
def test_an_interrupted_command_begins_the_seeds_that_are_left(line):
    signals = [signal.SIGINT]

    class Stopping(Line):
        def metrics(self, predict, split):
            if signals:
                os.kill(os.getpid(), signals.pop())
            return super().metrics(predict, split)

    stopped = line("--seed", "0,3", task=Stopping)
    assert stopped.code == 130 and stopped.seeds == {"plain-seed0": 0}
    assert line("--resume", "auto", task=Stopping).seeds == ALL


@pytest.mark.parametrize(("words", "told"), [
    (["--seed", "0,0"], "expected different seeds"), (["--seed", "0,"], "expected a number, or several"),
    (["--seed", "a"], "expected a number, or several"), (["--seed", "0,-1"], "seed")])
def test_what_is_no_list_of_seeds(line, words, told):
    wrong = line(*words)
    assert wrong.code == 2 and told in wrong.err and not wrong.seeds


def test_a_folder_of_one_seed_takes_no_list(line):
    assert line().code == 0
    wrong = line("--resume", "auto", "--seed", "0,1")
    assert wrong.code == 2 and "the one seed of the runs" in wrong.err and wrong.seeds == {"plain": 0, "fast": 0}


@pytest.mark.parametrize(("words", "program", "kept"), [
    (["run", "line", "--set", "a=x y", "--seed", "0,1"], "/usr/bin/duoln", ["duoln", "run", "line", "--set", "a=x y", "--seed", "0,1"]),
    (["run", "line", "--resume=anyway", "--ou", "old", "--json"], "/usr/bin/duoln", ["duoln", "run", "line", "--json"]),
    (["--epochs", "3", "--out=old"], "examples/own.py", ["python", "examples/own.py", "--epochs", "3"]),
    (["run", "line", "--ranks", "2", *planned.BY_LAUNCH], "duoln", ["duoln", "run", "line", "--ranks", "2"])])
def test_the_command_that_goes_on(words, program, kept, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    told = planned.resume_command(words, "my runs")
    assert shlex.split(told) == [*kept, "--resume", "auto", "--out", "my runs"]


@pytest.mark.parametrize(("module", "program"), [
    ("duoln.__main__", ["duoln"]), ("duoln.examples.mnist", ["python", "-m", "duoln.examples.mnist"])])
def test_the_command_that_goes_on_with_a_module(module, program, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=module))
    assert shlex.split(planned.resume_command(["run", "line"], None)) == [*program, "run", "line", "--resume", "auto"]
