"""`duoln run` with several variants and seeds, stopped and resumed: each run has its own folder, data and settings."""

import json
import os
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from small_runs import Line, LineConfig

import duoln
from duoln.cli import main, planned
from duoln.cli.run import run_task
from duoln.errors import MemoryExhaustedError, UsageError
from duoln.tasks import Column, Dataset
from duoln.testing import check_error


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


SMOKE = ("run", "mnist", "--preset", "smoke", "--set", "rows=400", "--set", "hidden=8", "--backend", "numpy")
RESUME = ("run", "mnist", "--resume", "auto", "--backend", "numpy")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of one variant with settings that are not the task's own."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main([*SMOKE, "--variant", "ln", "--out", str(out)]) == 0
    return out


@pytest.fixture
def begun(tmp_path, original):
    out = shutil.copytree(original, tmp_path / "a")
    return SimpleNamespace(out=out, run=lambda *words: main([*RESUME, "--out", str(out), *words]),
                           config=lambda variant="ln": json.loads((out / variant / "config.json").read_text())["config"])


@pytest.mark.long
def test_without_settings_a_run_goes_on_with_its_own(begun, capsys):
    before = begun.config()
    assert before["hidden"] == 8 and before["epochs"] == 1
    assert begun.run() == 0
    assert begun.config() == before and {p.name for p in begun.out.iterdir() if p.is_dir()} == {"ln"}
    assert begun.run("--epochs", "2") == 0
    assert begun.config() == {**before, "epochs": 2} and "ln: epochs was 1, and is 2" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "key", "asked", "has"), [
    (["--set", "hidden=16"], "hidden", "16", "8"), (["--batch-size", "64"], "batch_size", "64", "128"),
    (["--seed", "1"], "seed", "1", "0"), (["--set", "rows=none"], "rows", "none", "400"),
    (["--preset", "smoke"], "hidden", "64", "8")])
def test_a_setting_that_contradicts_is_refused_with_both_values(begun, capsys, words, key, asked, has):
    before = begun.config()
    assert begun.run(*words) == 2
    stderr = capsys.readouterr().err
    assert f"{key} {asked} where it has {has}" in stderr and "config.json" in stderr and "--out" in stderr
    assert begun.config() == before


@pytest.mark.long
def test_settings_that_agree_pass(begun):
    assert begun.run("--preset", "smoke", "--set", "hidden=8", "--set", "rows=400", "--variant", "ln") == 0


@pytest.mark.long
def test_a_variant_that_was_not_begun_gets_the_commands_settings(begun):
    assert begun.run("--variant", "none") == 0
    assert begun.config("none") == {**begun.config(), "norm": "none"}
    assert json.loads((begun.out / "none" / "command.json").read_text())["settings"] == {"rows": "400", "hidden": "8"}


@pytest.mark.long
def test_a_later_command_leaves_what_an_earlier_one_asked_for(begun):
    before = (begun.out / "ln" / "command.json").read_text()
    (begun.out / "ln" / "config.json").unlink()  # as if it had not begun
    shutil.rmtree(begun.out / "ln" / "checkpoints")
    assert main([*SMOKE, "--variant", "none", "--epochs", "2", "--out", str(begun.out)]) == 0
    assert (begun.out / "ln" / "command.json").read_text() == before
    assert begun.run() == 0
    assert begun.config()["epochs"] == 1 and begun.config("none")["epochs"] == 2


@pytest.mark.long
def test_a_programs_usual_preset_contradicts_nothing(tmp_path):
    line = ["--backend", "numpy", "--out", str(tmp_path)]
    assert run_task(Line, [*line, "--batch-size", "4", "--epochs", "2"], preset="smoke") == 0
    assert run_task(Line, [*line, "--resume", "auto"], preset="smoke") == 0
    config = json.loads((tmp_path / "plain" / "config.json").read_text())["config"]
    assert (config["batch_size"], config["epochs"]) == (4, 2)


def test_a_run_from_python(tmp_path, numpy_backend):
    first = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, batch_size=4)
    again = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, epochs=4)
    assert again.config.batch_size == 4 and again.figures["updates"] == first.figures["updates"] // 3 * 4
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, batch_size=8),
                "[line plain]", "batch_size 8 where it has 4")
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "fast", backend=numpy_backend, out=tmp_path, resume=True),
                "'fast'", "'plain'")
