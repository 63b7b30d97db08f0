"""Measured in training: how far the inputs of layers move, Lipschitz constants, and units at the border."""

import itertools

import numpy as np
import pytest

import duoln
from duoln import ops, runtime
from duoln.errors import DivergedError
from duoln.plugins.convnet.task import ConvNetTask
from duoln.plugins.las import spoken
from duoln.plugins.las.task import Las
from duoln.plugins.theory import trained
from duoln.plugins.theory.trained import Training, constants_at
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.train_step import make_gradients
from duoln.training.trainer import Trainer

TINY = {"batch_size": 4, "listener_hidden": 3, "speller_hidden": 4, "attention": 3, "mels": 3, "buckets": 2, "beam": 2, "longest": 4}


@pytest.fixture(autouse=True)
def _few_utterances(monkeypatch):
    monkeypatch.setattr(spoken, "COUNTS", {"train": 12, "dev": 3, "test": 3})


def _measure(what, variants=("none",), updates=4, every=2, seeds=(0,), **settings):
    return what(Training(Las(), variants, "smoke", {**TINY, **settings}, runtime.backend("numpy"), seeds, updates, every)).content


# Movements ------------------------------------------------------------------------------------------------

def test_movements_are_by_the_deviation_before():
    before = np.array([0.0, 1.0, 5.0]), np.array([2.0, 0.5, 0.0])
    after = np.array([1.0, 0.0, 9.0]), np.array([1.0, 0.6, 3.0])
    assert trained.movement_of(before, after) == pytest.approx(((0.5 + 2.0) / 2, (0.5 + 0.2) / 2))  # the third was constant
    assert trained.movement_of(before, before) == (0.0, 0.0)
    assert all(np.isnan(trained.movement_of((before[0], np.zeros(3)), after)))


def test_each_variant_and_seed_is_a_training_of_its_own():
    layers = ["listener 1, gates", "listener 2", "listener 2, gates", "attention", "softmax"]
    several, alone = _measure(trained.shift, ("none", "both"), updates=5, seeds=(0, 3)), _measure(trained.shift, updates=5, seeds=(3,))
    assert [(m["variant"], m["seed"], m["layer"]) for m in several["movements"]] == list(itertools.product(("none", "both"), (0, 3), layers))
    assert all(m["updates"] == [2, 4] for m in several["movements"]) and several["dataset"] == "made sounds, synthetic"
    assert several["seeds"] == [0, 3] and several["losses"]["none"][1:] == alone["losses"]["none"] != several["losses"]["none"][:1]
    assert [m for m in several["movements"] if (m["variant"], m["seed"]) == ("none", 3)] == alone["movements"]


def test_the_movement_is_that_of_the_trainers_own_states():
    task, backend = Las(), runtime.backend("numpy")
    measured = _measure(trained.shift, updates=2, every=1)
    cfg = make_config(task, "none", "smoke", TINY)
    splits = task.data(cfg)
    trainer = Trainer(task, "none", cfg, splits, backend)
    probe = runtime.to_tensors(splits.train(2), backend)
    rows = []
    for _ in range(3):
        rows.append(task.layer_inputs(trainer.model, trainer.state["params"], probe)["softmax"].astype(np.float64))
        trainer.advance()
    moved = [np.mean(np.abs(b.mean(0) - a.mean(0)) / a.std(0)) for a, b in itertools.pairwise(rows)]
    [softmax] = [m for m in measured["movements"] if m["layer"] == "softmax"]
    np.testing.assert_allclose(softmax["means"], moved, rtol=1e-6)


# Smoothness -----------------------------------------------------------------------------------------------

def _tree(*values):
    return {str(k): duoln.tensor(np.array(value), "numpy") for k, value in enumerate(values)}


@pytest.mark.parametrize(("function", "at", "distances", "expected"), [
    (lambda p: ops.sum(p["0"] * 3.0) + ops.sum(p["1"] * 4.0), ([1.0], [-1.0]), (0.1, 0.3), (5.0, 0.0)),  # a slope, whose gradient stays
    (lambda p: ops.sum(p["0"] ** 2) * 3.0, ([2.0],), (0.5, 1.0), (3 * (2 * 2 - 0.5), 2 * 3)),  # a parabola: the steepest chord is the shortest
    (lambda p: ops.sum(p["0"] ** 2) + ops.sum(p["1"] ** 2), ([3.0], [4.0]), (5.0,), (25 / 5, 10 / 5))])  # at this distance a bowl is at its bottom
def test_functions_have_the_constants_that_are_known(function, at, distances, expected):
    assert constants_at(duoln.value_and_grad(function), _tree(*at), distances) == pytest.approx(expected, abs=1e-6)


def test_without_a_slope_or_a_finite_loss_there_are_no_constants():
    flat = duoln.value_and_grad(lambda p: ops.sum(p["0"] * 0.0))
    check_error(DivergedError, lambda: constants_at(flat, _tree([1.0])), "not zero", "0.0")
    check_error(DivergedError, lambda: constants_at(flat, _tree([np.nan])), "finite loss", "nan")


@pytest.mark.long
def test_looks_are_before_every_few_updates_of_the_trainer_on_the_batch_that_comes_next():
    task, backend = Las(), runtime.backend("numpy")
    measured = _measure(trained.smoothness, ("none", "both"), updates=5, every=2, seeds=(0, 3))
    assert [(c["variant"], c["seed"]) for c in measured["constants"]] == [("none", 0), ("none", 3), ("both", 0), ("both", 3)]
    assert all(c["updates"] == [0, 2, 4] and len(c["loss"]) == len(c["gradient"]) == 3 for c in measured["constants"])
    cfg = make_config(task, "none", "smoke", {**TINY, "seed": 3})
    splits = task.data(cfg)
    trainer = Trainer(task, "none", cfg, splits, backend)
    for _ in range(2):
        trainer.advance()
    gradients = make_gradients(task, trainer.model)
    batch = runtime.to_tensors(splits.train(2), backend)
    expected = constants_at(lambda params: gradients(params, batch), trainer.state["params"])
    own = measured["constants"][1]
    assert (own["loss"][1], own["gradient"][1]) == pytest.approx(expected, rel=1e-4)


# Borders --------------------------------------------------------------------------------------------------

def test_rates_are_of_the_outermost_row_and_column_and_of_the_rest():
    on = np.zeros((2, 4, 3, 1), bool)
    on[0, 0, :, 0] = on[1, 1, 1, 0] = True
    assert trained.rates_of(on) == (3 / (2 * 10), 1 / (2 * 2))
    border, inside = trained.rates_of(np.ones((2, 2, 2, 3), bool))
    assert border == 1 and np.isnan(inside)


def test_every_layer_with_a_convolution_has_rates_of_each_variant_and_seed():
    measured = trained.borders(Training(ConvNetTask(), ("none", "wn"), "smoke", {}, runtime.backend("numpy"), (0, 1), 2, 1)).content
    layers = [f"{stage}.block{k}" for stage in ("first", "second", "third") for k in (1, 2, 3)]
    assert [(r["variant"], r["seed"], r["layer"]) for r in measured["rates"]] == list(itertools.product(("none", "wn"), (0, 1), layers))
    assert all(0 < r["border"] < 1 and 0 < r["inside"] < 1 for r in measured["rates"])
