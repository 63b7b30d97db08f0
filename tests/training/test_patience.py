"""Runs with patience end early with their best model. A run that was interrupted anywhere has the same end, to the
bit.
"""

import json
import os
import signal
import warnings

import numpy as np
import pytest
from conftest import ON_NUMPY
from small_runs import VALUES, At, Told, fit_into, state_bits

from duoln import tree
from duoln.errors import Interrupted, NotFiniteWarning
from duoln.runs import checkpoint, curves
from duoln.runs.log import read_log
from duoln.runs.trained import load_trained
from duoln.tasks import make_config
from duoln.training.trainer import Trainer


def told_trainer(be, **settings):
    task = Told()
    cfg = make_config(task, "plain", None, {"epochs": 6, "patience": 2, **settings})
    trainer = Trainer(task, "plain", cfg, task.data(cfg), be)
    task.metrics = lambda predict, split: {"mse": VALUES[trainer.update]}
    return trainer


def _steps(path):
    return [e["update"] for e in read_log(path) if e["event"] == "evaluation"]


@ON_NUMPY
def test_a_run_ends_after_so_many_evaluations_that_were_not_better_with_the_best(be, tmp_path):
    trainer = told_trainer(be)
    result = fit_into(trainer, tmp_path / "run", be)
    assert _steps(tmp_path / "run") == [5, 10, 15, 20]  # as good as the best is not better
    assert (result["updates"], result["valid_mse"], trainer.update) == (10, 1.0, 10)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    short = told_trainer(be, epochs=2, patience=0)
    fit_into(short, tmp_path / "short", be)
    assert [t.numpy().tobytes() for t in tree.leaves(trainer.state)] == state_bits(short)


@pytest.mark.parametrize(("settings", "evaluated", "ended"), [
    ({"patience": 3}, [5, 10, 15, 20, 25], 10), ({"patience": 4}, [5, 10, 15, 20, 25, 30], 30),
    ({"patience": 9}, [5, 10, 15, 20, 25, 30], 30), ({"patience": 1}, [5, 10, 15], 10),
    ({"patience": 9, "epochs": 4}, [5, 10, 15, 20], 10), ({"patience": 0, "epochs": 4}, [5, 10, 15, 20], 20)])
def test_how_long_a_run_is(numpy_backend, tmp_path, settings, evaluated, ended):
    """With patience a run ends with its best model, also if the epochs end first; without, with its last model."""
    result = fit_into(told_trainer(numpy_backend, **settings), tmp_path, numpy_backend)
    assert _steps(tmp_path) == evaluated and result["updates"] == ended and result["valid_mse"] == VALUES[ended]


def test_a_metric_that_is_no_number_is_told_and_is_neither_best_nor_patience(numpy_backend, tmp_path):
    trainer = told_trainer(numpy_backend, patience=1, epochs=4)
    values = {5: float("nan"), 10: 3.0, 15: float("nan"), 20: float("inf")}
    trainer.task.metrics = lambda predict, split: {"mse": values[trainer.update]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NotFiniteWarning)
        result = fit_into(trainer, tmp_path, numpy_backend)
    assert _steps(tmp_path) == [5, 10, 15, 20] and trainer.best == 3.0 and result["updates"] == 10
    assert [str(w.message).partition("expected ")[2] for w in told if w.category is NotFiniteWarning] == [
        f"a number as valid_mse, by which the best model is chosen, found nan at update {update}" for update in (5, 15)]


@pytest.mark.few
@pytest.mark.parametrize("stop", [3, 10, 12, 15, 18, 20])
@ON_NUMPY
def test_a_run_that_is_cut_ends_the_same(be, tmp_path, stop):
    whole = told_trainer(be)
    expected = fit_into(whole, tmp_path / "whole", be)
    with pytest.raises(Interrupted):
        fit_into(told_trainer(be), tmp_path / "cut", be, [At(stop, lambda: os.kill(os.getpid(), signal.SIGINT))])
    resumed = told_trainer(be)
    result = fit_into(resumed, tmp_path / "cut", be, resume=True)
    assert state_bits(resumed) == state_bits(whole) and max(_steps(tmp_path / "cut")) == 20
    assert {k: v for k, v in result.items() if not k.startswith("seconds_per_")} == {
        k: v for k, v in expected.items() if not k.startswith("seconds_per_")}


def test_resume_of_a_run_that_has_ended(numpy_backend, tmp_path):
    first = fit_into(told_trainer(numpy_backend), tmp_path, numpy_backend)
    again = fit_into(told_trainer(numpy_backend), tmp_path, numpy_backend, resume=True)
    assert again == first and _steps(tmp_path) == [5, 10, 15, 20]
    more = fit_into(told_trainer(numpy_backend, patience=5), tmp_path, numpy_backend, resume=True)
    assert _steps(tmp_path) == [5, 10, 15, 20, 25, 30] and more["updates"] == 30
    assert checkpoint.newest(tmp_path / "checkpoints")[0].best_update == 30


def test_an_evaluation_that_is_not_finite_is_not_better(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setitem(VALUES, 5, np.inf)
    monkeypatch.setitem(VALUES, 10, np.inf)
    trainer = told_trainer(numpy_backend)
    result = fit_into(trainer, tmp_path, numpy_backend)
    assert _steps(tmp_path) == [5, 10] and result["updates"] == 10  # there is no best to end with


def test_what_is_read_back_and_reported_is_the_best(numpy_backend, tmp_path):
    trainer = told_trainer(numpy_backend)
    fit_into(trainer, tmp_path / "plain", numpy_backend)
    trained = load_trained(Told(), tmp_path / "plain", numpy_backend)
    assert trained.update == 10
    assert [t.numpy().tobytes() for t in tree.leaves(trained.params)] == [
        t.numpy().tobytes() for t in tree.leaves(trainer.state["params"])]
    [curve] = curves.read_curves([tmp_path / "plain"])
    assert curve.last["update"] == 10 and curve.last["valid_mse"] == 1.0
    assert curve._replace(result={}).last["update"] == 20  # a run that has not ended has its last model


def test_a_resumed_run_has_no_result_until_it_ends(numpy_backend, tmp_path):
    fit_into(told_trainer(numpy_backend), tmp_path, numpy_backend)
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join([*lines, lines[0]]))
    assert curves.read_curves([tmp_path])[0].result == {}
