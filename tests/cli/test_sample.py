"""What a run has learnt: read back from its folder, sampled, and a corpus prepared, from the command line."""

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from small_runs import fit_into

from duoln import cli, runtime, tasks
from duoln.errors import CheckpointError, DataError, UsageError
from duoln.examples.own_task import Spirals
from duoln.pictures import drawing
from duoln.plugins.mnist.task import Mnist
from duoln.randomness import Stream
from duoln.runs.trained import load_trained
from duoln.tasks.contract import RESERVED
from duoln.testing import check_error, check_task
from duoln.training.train import train
from duoln.training.trainer import Trainer


@dataclass(frozen=True)
class Options:
    count: int = tasks.option(3, "how many")
    scale: float | None = tasks.option(None, "how large")
    stamp: str = tasks.option("%d.%m", "how times are written, 10% or 50%(a half) of them; %(prog)s")


class Generative(Spirals):
    """Spirals that can be sampled: a sample holds its options and the sum of the parameters."""

    name = "generative"
    sampling: ClassVar = Options

    def sample(self, trained, options, out):
        total = sum(float(abs(t.numpy()).sum()) for layer in trained.params.values() for t in layer.values())
        out.write_text(f"{trained.variant} {trained.update} {options.count} {options.scale} {total:.4f}")
        return [out]

    def prepare(self, source, target):
        if not (source / "corpus.txt").is_file():
            raise DataError(f"{source / 'corpus.txt'}: missing")
        return [target / "ready.npz"]


@pytest.fixture
def task(monkeypatch):
    made = Generative()
    monkeypatch.setattr("duoln.tasks.registry.find_task", lambda name, plugins=None: made)
    return made


@pytest.fixture
def run(tmp_path, task):
    cfg = tasks.make_config(task, "ln", None, {"epochs": 1})
    backend = runtime.backend("numpy")
    fit_into(Trainer(task, "ln", cfg, task.data(cfg), backend), tmp_path / "run" / "ln", backend)
    return tmp_path / "run"


def test_a_run_read_back_predicts_as_it_did(run, task):
    cfg = tasks.make_config(task, "ln", None, {"epochs": 1})
    backend = runtime.backend("numpy")
    trainer = Trainer(task, "ln", cfg, task.data(cfg), backend)
    for _ in range(trainer.last_update):
        trainer.advance()
    trained = load_trained(task, run, backend)
    assert (trained.config, trained.variant, trained.update) == (cfg, "ln", trainer.last_update)
    x = runtime.tensor(Stream(0, "x").gaussian((5, 2)).astype(np.float32), backend)
    assert np.array_equal(trained.model(trained.params, x).numpy(), trainer.model(trainer.state["params"], x).numpy())


def test_a_run_may_be_read_on_another_backend(run, task):
    on_numpy, on_mlx = (load_trained(task, run, runtime.backend(name)) for name in ("numpy", "mlx"))
    assert on_numpy.params and all(on_numpy.params.values())
    for layer, params in on_numpy.params.items():
        for name, t in params.items():
            assert np.array_equal(t.numpy(), on_mlx.params[layer][name].numpy())


def test_sample_from_the_command_line(run, capsys):
    out = run / "sample.txt"
    argv = ["sample", str(run), "--out", str(out), "--backend", "numpy"]
    assert cli.main([*argv, "--count", "7", "--scale", "0.5"]) == 0
    assert out.read_text().split()[:1] + out.read_text().split()[2:4] == ["ln", "7", "0.5"]
    assert f"wrote {out}" in capsys.readouterr().err.replace("\n", "")
    assert cli.main(argv) == 0 and out.read_text().split()[2:4] == ["3", "None"]


def test_the_help_of_a_tasks_options_has_its_percent_signs(run, task, capsys):
    task.evaluating = Options
    for command in ("sample", "evaluate"):
        assert cli.main([command, str(run), "--help"]) == 0
        words = " ".join(capsys.readouterr().out.split())
        assert "str: how times are written, 10% or 50%(a half) of them; %(prog)s (default %d.%m)" in words
    assert cli.main(["sample", str(run), "--out", str(run / "50%.txt"), "--backend", "numpy"]) == 0


def test_the_reserved_names_are_those_that_are_taken(run, task, capsys):
    task.evaluating = Options
    for command, attribute in (("sample", "sampling"), ("evaluate", "evaluating")):
        cli.main([command, str(run), "--help"])
        flags = set(re.findall(r"--(\w+)", capsys.readouterr().out.partition("\n\n")[0]))
        assert flags | {"help"} == {*RESERVED[attribute][0], "count", "scale", "stamp"}
    taken = set(inspect.signature(train).parameters) - {"settings"}
    assert set(RESERVED["config"][0]) == taken and not taken & {field.name for field in dataclasses.fields(tasks.Config)}


def test_a_sample_that_is_given_no_name_is_in_the_folder_of_the_run(run, task, capsys, monkeypatch):
    argv = ["sample", str(run), "--backend", "numpy"]
    assert cli.main(argv) == 0 and f"wrote {run / 'sample.svg'}" in capsys.readouterr().err.replace("\n", "")
    monkeypatch.setattr(Generative, "sample_name", "sample.txt", raising=False)
    assert cli.main(argv) == 0 and (run / "sample.txt").read_text() == (run / "sample.svg").read_text()


@pytest.mark.parametrize(("extra", "words"), [
    (["--count", "many"], ["--count", "int", "'many'"]), (["--count", "1.5"], ["--count", "'1.5'"]),
    (["--scale", "nan"], ["--scale", "'nan'"])])
def test_options_that_do_not_fit(run, capsys, extra, words):
    assert cli.main(["sample", str(run), "--out", "x", *extra]) == 2
    stderr = capsys.readouterr().err
    assert all(word in stderr for word in words), stderr


@pytest.mark.parametrize("argv", [["sample"], ["sample", "-h"], ["sample", "RUN", "--help"],
                                  ["sample", "RUN", "--colour", "red", "--out", "o"]])
def test_help_and_unknown_options(run, argv, capsys):
    code = cli.main([word.replace("RUN", str(run)) for word in argv])
    output = "".join(capsys.readouterr())
    assert code == (2 if "--colour" in argv or len(argv) == 1 else 0) and "duoln sample" in output
    assert "--count" in output or "--colour" in argv or len(argv) < 3
    if argv[-1] == "--help":
        assert "int: how many (default 3)" in output and "float or none: how large" in output


def test_a_task_without_samples_says_so(capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"task": "mnist", "variant": "ln", "config": {"batch_size": 1}}')
    for command, words in (("sample", "nothing to sample"), ("evaluate", "no evaluation of its own")):
        assert cli.main([command, str(tmp_path), "--out", "o"]) == 2
        told = capsys.readouterr().err
        assert words in told and "tasks that have: " in told and "transformer" in told.split("tasks that have: ")[1]


def test_a_folder_of_several_runs_names_them(run, capsys):
    (run / "none").mkdir()
    for name in ("config.json", "log.jsonl"):
        (run / "none" / name).write_text((run / "ln" / name).read_text())
    assert cli.main(["sample", str(run), "--out", "o"]) == 2
    assert f"expected one run, found 2; name one of {run / 'ln'}, {run / 'none'}" in capsys.readouterr().err.replace("\n", "")


def test_data_that_need_no_preparing(capsys):
    assert cli.main(["data", "prepare", "mnist", "--from", "."]) == 2
    assert "needs no preparing" in capsys.readouterr().err


def test_runs_that_cannot_be_sampled(run, task, tmp_path):
    numpy = runtime.backend("numpy")
    check_error(CheckpointError, lambda: load_trained(task, tmp_path / "none", numpy), "none", "nothing")
    (run / "none").mkdir()
    for name in ("config.json", "log.jsonl"):
        (run / "none" / name).write_text((run / "ln" / name).read_text())
    check_error(UsageError, lambda: load_trained(task, run, numpy), "one run", "found 2")
    check_error(CheckpointError, lambda: load_trained(task, run / "none", numpy), "expected a checkpoint", "none")
    config = run / "ln" / "config.json"
    good = config.read_text()
    config.write_text(good.replace('"generative"', '"other"'))
    check_error(UsageError, lambda: load_trained(task, run / "ln", numpy), "generative", "'other'")
    config.write_text(good.replace('"width"', '"breadth"'))
    check_error(CheckpointError, lambda: load_trained(task, run / "ln", numpy), "config.json", "setting")
    config.write_text(good.replace('"width": ', '"width": 1'))
    check_error(CheckpointError, lambda: load_trained(task, run / "ln", numpy), "safetensors", "shape")
    config.write_text(good)
    for file in (run / "ln" / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    check_error(CheckpointError, lambda: load_trained(task, run / "ln", numpy), "none that can be read")


def test_a_corpus_is_prepared(task, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path / "mine"))
    argv = ["data", "prepare", "generative", "--from"]
    assert cli.main([*argv, str(tmp_path / "no")]) == 4
    assert cli.main([*argv, str(tmp_path)]) == 4 and "corpus.txt" in capsys.readouterr().err
    (tmp_path / "corpus.txt").write_text("words")
    assert cli.main([*argv, str(tmp_path)]) == 0
    assert str(tmp_path / "mine" / "ready.npz") in capsys.readouterr().err.replace("\n", "")
    assert cli.main([*argv, str(tmp_path), "--out", "o"]) == 0 and "o/ready.npz" in capsys.readouterr().err


@pytest.mark.long
def test_pictures_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def draw(target):
        with drawing.figure(target, 1, 2) as (whole, axes):
            axes[0][1].plot([1, 2])
            whole.suptitle("two")

    draw(tmp_path / "deep" / "a.png")
    draw(tmp_path / "a.svg")
    assert (tmp_path / "deep" / "a.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (tmp_path / "a.svg").read_text()
    check_error(UsageError, lambda: draw(tmp_path / "a.gif"), ".png", ".gif")
    check_error(CheckpointError, lambda: draw(tmp_path / "a.svg" / "b.png"), "a.svg", "cannot be written")
    monkeypatch.setattr(drawing, "refusal", lambda: "pip install matplotlib")
    check_error(UsageError, lambda: draw(tmp_path / "c.png"), "pip install matplotlib")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "deep"]


@pytest.mark.long
def test_the_kit_for_tasks_samples_too(numpy_backend):
    class Silent(Generative):
        def sample(self, trained, options, out):
            return [out]

    class Fickle(Generative):
        drawn = 0

        def sample(self, trained, options, out):
            Fickle.drawn += 1
            out.write_text(str(Fickle.drawn))
            return [out]

    check_task(Generative(), steps=2, gradients=False, agreement=False)
    for wrong, words in ((Silent(), "expected the file first.png"), (Fickle(), "two samples with the same seed differ")):
        with pytest.raises(AssertionError, match=words):
            check_task(wrong, steps=2, gradients=False, agreement=False)


@pytest.mark.parametrize(("config", "words"), [
    (7, ["config.json", "an object as config", "7"]), ({"seed": 0, "hidden": "many"}, ["config.json"])])
def test_a_damaged_config_is_told(config, words, tmp_path):
    import json

    from duoln.errors import DuolnError

    task = Mnist()
    (tmp_path / "config.json").write_text(json.dumps({"task": "mnist", "variant": "ln", "config": config}))
    check_error(DuolnError, lambda: load_trained(task, tmp_path, runtime.backend("numpy")), *words)
