"""The examples run and learn, and the one that shows how to write a task passes the kit for tasks."""

import json
import subprocess
import sys

import numpy as np
import pytest

import duoln
from duoln import extend
from duoln.examples import lstm, own_operator, training_loop
from duoln.examples.own_task import Spirals
from duoln.testing import check_task


def test_own_task_is_a_task(be):
    check_task(Spirals(), backend=be)


def test_own_task_learns_from_the_command_line(tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln.examples.own_task", "--json", "--out", "r"], cwd=tmp_path,
                         capture_output=True, text=True, check=True)
    errors = {r["variant"]: r["test_error"] for r in json.loads(out.stdout)["results"]}
    assert errors["ln"] < 0.15


def test_the_training_loop_learns_digits():
    """Ten classes: a network that has learnt nothing errs on 90 % of them."""
    assert training_loop.main(updates=60) < 0.5


def test_the_lstm_learns_what_it_is_shown(numpy_backend):
    """Two classes: one that has learnt nothing errs on half of them."""
    assert lstm.train("layer", numpy_backend, updates=60) < 0.35


def test_the_lstm_compares_both_variants():
    errors = lstm.main(updates=2)
    assert set(errors) == {"none", "layer"} and all(0 <= error <= 1 for error in errors.values())


def test_own_operator_checks_itself_and_finds_the_least_value():
    assert own_operator.main() == pytest.approx(3, abs=1e-3)


def test_own_operator_on_every_backend(be, rng):
    points = np.append(rng.standard_normal(9), (-300.0, 0.0, 300.0))
    extend.check_op(own_operator.log_cosh, [points], lambda x: np.logaddexp(x, -x) - np.log(2), be)


def test_a_number_is_left_to_the_composed_rule(numpy_backend):
    verdicts = own_operator.log_cosh.explain(duoln.tensor(1.0, numpy_backend))
    assert verdicts == [("in place", "a single value"), ("composed", "runs")]
