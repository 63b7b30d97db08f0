"""`duoln.tasks.train`: a run from Python gives what the command gives, prints nothing, and leaves only what was asked for."""

import json
import os
import signal
import tempfile

import numpy as np
import pytest
from small_runs import At, Line, fit_into, line_trainer, state_bits

import duoln
from duoln import cli, tree
from duoln.errors import CheckpointError, Interrupted, UsageError
from duoln.testing import check_error


def test_a_task_object_on_every_backend(be, tmp_path, capfd):
    run = duoln.tasks.train(Line(), backend=be, variant="plain", epochs=2)
    trainer = line_trainer(be, epochs=2)
    figures = fit_into(trainer, tmp_path / "r", be)
    unclocked = {key: value for key, value in figures.items() if not key.startswith("seconds_per_")}
    assert {key: value for key, value in run.figures.items() if key in unclocked} == unclocked
    assert [t.numpy().tobytes() for t in tree.leaves(run.params)] == [
        t.numpy().tobytes() for t in tree.leaves(trainer.state["params"])]
    assert run.backend == be.name and run.dataset.name == "a line" and run.folder is None
    assert capfd.readouterr() == ("", "")


def test_curves_are_arrays(numpy_backend):
    run = duoln.tasks.train(Line(), "plain", backend=numpy_backend)
    np.testing.assert_array_equal(run.curves["update"], [5, 10, 15])
    np.testing.assert_array_equal(run.curves["epoch"], [1, 2, 3])
    assert run.curves["valid_mse"][-1] == run.figures["valid_mse"] and (np.diff(run.curves["seconds"]) >= 0).all()
    np.testing.assert_array_equal(run.losses["update"], np.arange(1, 16))
    assert run.losses["loss"].dtype == np.float64 and run.losses["loss"].shape == (15,)
    x = duoln.tensor(np.zeros((2, 1), np.float32), numpy_backend)
    assert run.model(run.params, x).shape == (2, 1) and "a line" in repr(run) and "valid_mse" in repr(run)


def test_the_command_gives_the_same(tmp_path, capsys):
    run = duoln.tasks.train("mnist", "ln", preset="smoke", epochs=1, backend="numpy", out=tmp_path / "a")
    assert cli.main(["run", "mnist", "--variant", "ln", "--preset", "smoke", "--epochs", "1", "--backend", "numpy",
                     "--out", str(tmp_path / "b"), "--json"]) == 0
    [result] = json.loads(capsys.readouterr().out)["results"]
    assert (result.pop("status"), result.pop("dataset")) == ("done", run.dataset._asdict())
    assert {key: result[key] for key in result if not key.startswith("seconds_per_")} == {
        key: run.figures[key] for key in result if not key.startswith("seconds_per_")}
    assert run.folder == tmp_path / "a"


def test_a_run_goes_on_in_its_folder(numpy_backend, tmp_path):
    with pytest.raises(Interrupted, match="go on with resume=True and this `out`"):
        duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / "run",
                    listeners=[At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])
    check_error(CheckpointError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / "run"),
                "already holds")
    run = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=str(tmp_path / "run"), resume=True)
    whole = line_trainer(numpy_backend)
    fit_into(whole, tmp_path / "whole", numpy_backend)
    assert [t.numpy().tobytes() for t in tree.leaves(run.params)] == state_bits(whole)[:len(tree.leaves(run.params))]
    np.testing.assert_array_equal(run.losses["update"], np.arange(1, 16))


def test_without_a_folder_for_temporary_files_the_error_says_what_to_set(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    check_error(CheckpointError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, epochs=1), "temporary",
                "gone", "TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    check_error(CheckpointError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, epochs=1), "temporary", "TMPDIR")


def test_ctrl_c_without_a_folder_says_that_nothing_is_kept(numpy_backend):
    with pytest.raises(Interrupted, match="nothing is kept") as caught:
        duoln.tasks.train(Line(), "plain", backend=numpy_backend,
                    listeners=[At(7, lambda: os.kill(os.getpid(), signal.SIGTERM))])
    assert caught.value.exit_code == 128 + signal.SIGTERM


@pytest.mark.parametrize(("arguments", "words"), [
    ({"task": "mnits"}, ["[task]", "'mnits'", "did you mean 'mnist'"]), ({"task": 3}, ["[train]", "int"]),
    ({"task": "mnist", "variant": None}, ["[mnist]", "none, bn, ln", "None"]), ({"variant": "nl"}, ["plain, fast", "'nl'"]),
    ({"preset": "smok"}, ["'smok'", "did you mean 'smoke'"]), ({"preset": "tiny", "variant": None}, ["a preset of", "'tiny'"]), ({"seed": -1}, ["seed", "-1"]),
    ({"preset": ["smoke"]}, ["a preset of", "['smoke']"]), ({"epoch": 1}, ["'epoch'", "did you mean 'epochs'"]),
    ({"epochs": -1}, ["epochs of at least 0", "-1"]), ({"patience": -1}, ["patience of at least 0", "-1"]), ({"watch_every": 3}, ["[train] watch_every: expected `watch` too"]),
    ({"epochs": "many"}, ["epochs", "'many'"]),
    ({"backend": "nunpy"}, ["[backend]", "did you mean 'numpy'"]), ({"resume": True}, ["`out`", "none"]),
    ({"variant": ["plain"]}, ["plain, fast", "['plain']"]), ({"out": 3}, ["[train] out", "3 (int)"]),
    ({"listeners": [print]}, ["[train] listeners", "Listener"]), ({"data": "not-there"}, ["[train] data", "not-there"])])
def test_wrong_calls_are_named(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_error(UsageError, lambda: duoln.tasks.train(**{"task": Line(), "variant": "plain", **arguments}), *words)
