"""Variants of one command: each on its own data, and none is lost because another one fails or the command is stopped."""

import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from small_runs import Line, LineConfig

import duoln
from duoln.cli import main
from duoln.cli.run import run_task
from duoln.errors import MemoryExhaustedError
from duoln.tasks import Column, Dataset


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """A command for a task in `runs/r`: its exit code, stdout and stderr, and the epochs of each finished run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(task, *words, out="runs/r"):
        code = run_task(task, ["--backend", "numpy", *(["--out", out] if out else []), *words], preset="smoke")
        done = {str(path.parent.relative_to(tmp_path)): json.loads(path.read_text())["epochs"]
                for path in sorted(tmp_path.rglob("result.json"))}
        return SimpleNamespace(code=code, done=done, **dict(zip(("out", "err"), capsys.readouterr(), strict=True)))

    return run


# Data -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class CropConfig(LineConfig):
    epochs: int = 1
    crop: int = 10
    """Which part of the line is read."""


class Crops(Line):
    """Its variants read different data, of which the size is a metric too."""

    name, config = "crops", CropConfig
    variants: ClassVar = {"short": {"crop": 16}, "long": {"crop": 40}}
    columns = (Column("valid_mse", "valid MSE"), Column("valid_rows", "rows", ".0f"))
    label = "{} points"

    def data(self, cfg, root=None):
        whole = super().data(cfg, root)
        cut = {key: a[:cfg.crop] for key, a in whole.evaluation["valid"].items()}
        return replace(whole, dataset=Dataset(self.label.format(cfg.crop), "synthetic"), evaluation={"valid": cut},
                       train=lambda step: {key: a * np.float32(cfg.crop) for key, a in whole.train(step).items()})

    def metrics(self, predict, split):
        return {**super().metrics(predict, split), "rows": len(split["x"])}


class OneName(Crops):
    """The name of its data does not say which part they are."""

    name, label = "onename", "a part"


@pytest.mark.long
@pytest.mark.parametrize("task", [Crops, OneName])
@pytest.mark.parametrize("seeds", [[], ["--seed", "0,1"]])
def test_each_variant_trains_and_is_judged_on_its_own_data(task, seeds, command, tmp_path):
    made = command(task, "--json", *seeds)
    assert made.code == 0, made.err
    result = json.loads(made.out)
    assert {(r["variant"], r["valid_rows"]) for r in result["results"]} == {("short", 16.0), ("long", 40.0)}
    for r in result["results"]:
        assert r["dataset"]["name"] == task.label.format(Crops.variants[r["variant"]]["crop"])
        alone = duoln.tasks.train(task(), r["variant"], preset="smoke", backend="numpy", seed=r["seed"])
        assert alone.figures["valid_mse"] == r["valid_mse"]
    assert (result["dataset"] is None) == (task is Crops)


@pytest.mark.long
def test_figures_on_different_data_are_in_different_tables(command):
    made = command(Crops)
    assert "data: 16 points, synthetic" in made.out and "data: 40 points, synthetic" in made.out
    assert made.out.count("A line") == 2 and command(OneName, out="runs/one").out.count("A line") == 1


# Failures ---------------------------------------------------------------------------------------------------

class Wild(Line):
    """The first variant of three diverges after its first epoch, by what its batches hold."""

    name = "wild"
    variants: ClassVar = {"wild": {"poison": 7}, "plain": {}, "fast": {"learning_rate": 0.1}}


@pytest.mark.long
@pytest.mark.parametrize("seeds", [[], ["--seed", "0,1"]])
def test_a_variant_that_diverges_takes_no_other_with_it(seeds, command):
    ends = ["-seed0", "-seed1"] if seeds else [""]
    rest = {f"runs/r/{variant}{end}": 3 for variant in ("plain", "fast") for end in ends}
    for words in ([], ["--resume", "auto"]):
        made = command(Wild, *seeds, *words)
        assert (made.code, made.done) == (5, rest), made.err
        [row] = [line for line in made.out.splitlines() if line.startswith("│ wild")]
        assert ("diverged (2 of 2)" if seeds else "diverged") in row and made.out.count("diverged") == 1
        assert all(f"wild{end}: the loss is nan" in made.err.splitlines()[-1] for end in ends)
    assert "diverged" in command(Wild, "--json", *seeds, "--resume", "auto").out


@pytest.mark.long
def test_a_report_tells_which_run_diverged(command, monkeypatch, capsys):
    monkeypatch.setattr("duoln.tasks.registry.find_task", lambda name, plugins=None: Wild())
    command(Wild)
    for words in (["--markdown"], ["--markdown", "--by", "seed"]):
        assert main(["report", "runs/r", *words]) == 0
        header, _, row, *others = capsys.readouterr().out.splitlines()
        assert "| ended |" in header and "| diverged |" in row and "diverged" not in "".join(others)


@pytest.mark.long
def test_json_has_the_state_of_each_run_and_the_error(command):
    result = json.loads(command(Wild, "--json").out)
    assert [(r["variant"], r["status"]) for r in result["results"]] == [("wild", "diverged"), ("plain", "done"), ("fast", "done")]
    assert result["error"]["exit_code"] == 5 and result["error"]["message"].startswith("wild: the loss is nan")


def test_a_variant_for_which_the_memory_is_too_small_takes_no_other_with_it(command, monkeypatch):
    from duoln.training.trainer import Trainer

    def estimate(self, real=Trainer.estimate_memory):
        if self.variant == "plain":
            raise MemoryExhaustedError("line plain takes too much")
        return real(self)

    monkeypatch.setattr(Trainer, "estimate_memory", estimate)
    made = command(Line)
    assert (made.code, made.done) == (6, {"runs/r/fast": 3}) and "failed" in made.out
    assert "plain: line plain takes too much" in made.err.splitlines()[-1]


@pytest.mark.long
def test_the_only_run_of_a_command_ends_it_with_its_own_message(command):
    class Alone(Wild):
        variants: ClassVar = {"wild": {"poison": 7}}

    made = command(Alone)
    assert made.code == 5 and made.err.splitlines()[-1].startswith("duoln: the loss is nan")


# Stops ------------------------------------------------------------------------------------------------------

class Stopped(Line):
    """Stops the command at its first evaluation, as often as `stops` says."""

    name = "stopped"
    variants: ClassVar = {"plain": {}}
    stops: ClassVar[list[int]] = []

    def metrics(self, predict, split):
        if self.stops:
            os.kill(os.getpid(), self.stops.pop())
        return super().metrics(predict, split)


def _configs(tmp_path):
    return {path.parent.name: json.loads(path.read_text())["config"]["epochs"] for path in tmp_path.rglob("config.json")}


@pytest.mark.long
def test_what_the_last_command_asked_for_holds_for_runs_that_it_did_not_reach(command, tmp_path):
    Stopped.stops[:] = [signal.SIGTERM]
    assert command(Stopped, "--seed", "0,1,2", "--epochs", "2").code == 143
    Stopped.stops[:] = [signal.SIGTERM]
    assert command(Stopped, "--resume", "auto", "--epochs", "4").code == 143
    assert command(Stopped, "--resume", "auto").done == {f"runs/r/plain-seed{seed}": 4 for seed in range(3)}


@pytest.mark.long
def test_also_for_runs_that_an_earlier_command_had_ended(command, tmp_path):
    assert command(Stopped, "--seed", "0,1", "--epochs", "1").code == 0
    Stopped.stops[:] = [signal.SIGTERM]
    assert command(Stopped, "--resume", "auto", "--epochs", "2").code == 143
    assert _configs(tmp_path) == {"plain-seed0": 2, "plain-seed1": 2}
    assert set(command(Stopped, "--resume", "auto").done.values()) == {2}


@pytest.mark.long
def test_the_precision_too(command, tmp_path):
    Stopped.stops[:] = [signal.SIGTERM]
    assert command(Stopped, "--seed", "0,1", "--precision", "bf16").code == 143
    shutil.rmtree(tmp_path / "runs" / "r" / "plain-seed0")
    assert command(Stopped, "--resume", "auto").code == 0
    config = json.loads((tmp_path / "runs" / "r" / "plain-seed1" / "config.json").read_text())
    assert config["precision"] == "bf16"


@pytest.mark.long
@pytest.mark.parametrize("out", ["runs", "runs/study/b", "runs/a/b/c"])
def test_the_newest_run_goes_on_wherever_it_is_below_runs(out, command):
    assert command(Line, "--epochs", "1", out="runs/old").code == 0
    assert command(Line, "--epochs", "1", out=out).code == 0
    made = command(Line, "--resume", "auto", "--epochs", "2", out=None)
    assert made.code == 0 and f"going on in {out}" in made.err
    assert made.done == {f"{out}/plain": 2, f"{out}/fast": 2, "runs/old/plain": 1, "runs/old/fast": 1}
    assert command(Line, "--epochs", "1", out="runs/new").code == 0
    assert "going on in runs/new" in command(Line, "--resume", "auto", out=None).err
