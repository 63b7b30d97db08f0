"""Runs are found at every depth, by `duoln report` as by `--resume auto`; none lies in another one."""

import pytest
from small_runs import Line, fit_into, line_trainer

import duoln
from duoln.cli.run import run_task
from duoln.errors import DataError, UsageError
from duoln.runs.curve import read_header
from duoln.runs.curves import read_curves
from duoln.runs.places import is_run, run_folders
from duoln.runs.trained import load_trained
from duoln.testing import check_error


def _made(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("config.json", "log.jsonl"):
        (folder / name).write_text('{"task": "line"}')
    return folder


def test_a_run_and_the_runs_at_every_depth_in_order(tmp_path):
    assert run_folders(tmp_path) == run_folders(tmp_path / "absent") == []
    names = ("a/ln", "a/none", "b/ln", "c", "d/e/f/ln", "d/ln")
    made = [_made(tmp_path / name) for name in names]
    assert run_folders(made[0]) == made[:1] and run_folders(tmp_path / "a") == made[:2]
    assert run_folders(tmp_path) == made
    (tmp_path / "d" / "e" / "back").symlink_to(tmp_path)
    assert run_folders(tmp_path) == made


@pytest.mark.parametrize(("names", "expected"), [
    (("config.json",), False), (("config.json", "curves.csv"), False), (("log.jsonl",), False),
    (("config.json", "log.jsonl"), True), (("config.json", "command.json"), True),
    (("config.json", "curves.csv", "result.json"), True)])
def test_the_config_of_another_program_is_no_run(names, expected, tmp_path):
    assert is_run(_made(tmp_path / "x", *names)) is expected
    assert run_folders(tmp_path) == ([tmp_path / "x"] if expected else [])
    _made(tmp_path / "x" / "checkpoints", "weights.bin")
    assert is_run(tmp_path / "x") is expected
    _made(tmp_path / "x" / "checkpoints", "update-000000001.safetensors")
    assert is_run(tmp_path / "x") is ("config.json" in names)


@pytest.mark.parametrize("place", [".", "theirs"])
@pytest.mark.parametrize("names", [["config.json"], ["config.json", "log.jsonl", "result.json"]])
def test_a_model_of_another_program_beside_the_runs_is_left_out(names, place, tmp_path):
    theirs = _made(tmp_path / "project" / place, *names)
    (theirs / "config.json").write_text('{"model_type": "bert", "hidden_size": 768}')
    assert run_task(Line, ["--backend", "numpy", "--epochs", "1", "--out", str(tmp_path / "project")], preset="smoke") == 0
    assert [path.parent.name for path in sorted((tmp_path / "project").glob("*/result.json"))][:2] == ["fast", "plain"]
    assert (tmp_path / "project" / "curves.csv").exists()
    assert [curve.variant for curve in read_curves([tmp_path / "project"])] == ["fast", "plain"]
    check_error(DataError, lambda: read_curves([theirs]) if place == "theirs" else read_header(theirs / "config.json"),
                "config.json", "task")


@pytest.mark.parametrize("damage", [{"log.jsonl": "{\n{}\n"}, {"config.json": "x" * (1 << 21)}])
def test_a_damaged_run_beside_those_of_a_command_is_left_out_and_named(damage, tmp_path, capsys):
    _made(tmp_path / "old")
    for name, text in damage.items():
        (tmp_path / "old" / name).write_text(text)
    assert run_task(Line, ["--backend", "numpy", "--epochs", "1", "--out", str(tmp_path)], preset="smoke") == 0
    assert f"left out: {tmp_path}/old/" in capsys.readouterr().err.replace("\n", "") and (tmp_path / "curves.csv").exists()
    check_error(DataError, lambda: read_curves([tmp_path]), "old")


def test_names_with_numbers_are_in_the_order_of_the_numbers(tmp_path):
    runs = [_made(tmp_path / name) for name in ("ln-seed2", "ln-seed9", "ln-seed10", "mnist-1", "mnist-1-2", "mnist-1-12")]
    assert run_folders(tmp_path) == runs


def test_hidden_folders_and_checkpoints_are_left_out(tmp_path):
    run = _made(tmp_path / "ln")
    _made(tmp_path / ".trash" / "ln")
    _made(run / "checkpoints" / "x")
    assert run_folders(tmp_path) == [run]


def test_a_run_is_not_made_in_another_one_nor_around_it(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path / "a" / "plain", numpy_backend)
    for out in (tmp_path / "a" / "plain" / "b", tmp_path / "a" / "plain" / "b" / "c", tmp_path / "a", tmp_path):
        check_error(UsageError, lambda out=out: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=out),
                    str(out), "other runs", "a/plain")
    assert run_folders(tmp_path) == [tmp_path / "a" / "plain"]
    assert [path.name for path in (tmp_path / "a" / "plain").iterdir() if path.is_dir()] == ["checkpoints"]


def test_a_command_is_refused_before_it_trains(tmp_path, capsys):
    words = ["--backend", "numpy", "--epochs", "1", "--out"]
    assert run_task(Line, [*words, str(tmp_path / "a")], preset="smoke") == 0
    for out in (tmp_path / "a" / "plain", tmp_path / "a" / "plain" / "more"):
        capsys.readouterr()
        assert run_task(Line, [*words, str(out), "--seed", "0,1"], preset="smoke") == 2
        told = capsys.readouterr()
        assert "a/plain around it" in told.err and "epoch 1" not in told.err
    assert [run.name for run in run_folders(tmp_path)] == ["fast", "plain"]


def test_a_run_that_has_another_one_in_it_is_read_by_its_name(numpy_backend, tmp_path):
    """As after a folder was moved by hand."""
    for name in ("outer", "inner"):
        fit_into(line_trainer(numpy_backend, epochs=1), tmp_path / name, numpy_backend)
    (tmp_path / "inner").rename(tmp_path / "outer" / "inner")
    assert run_folders(tmp_path) == [tmp_path / "outer", tmp_path / "outer" / "inner"]
    assert load_trained(Line(), tmp_path / "outer", numpy_backend).update == 5
    assert duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / "outer" / "inner", resume=True,
                       epochs=2).figures["updates"] == 10
