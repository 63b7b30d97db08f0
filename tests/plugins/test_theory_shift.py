"""How far the inputs of layers move in training: the measure by hand, and that training moves what it should."""

import itertools

import numpy as np
import pytest

from duoln import runtime
from duoln.errors import UsageError
from duoln.plugins.las.task import Las
from duoln.plugins.theory import shift
from duoln.plugins.theory.shift import Distribution
from duoln.plugins.theory.trained import Training
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer

TINY = {"utterances": 12, "batch_size": 4, "listener_hidden": 3, "speller_hidden": 4, "attention": 3, "mels": 3, "buckets": 2,
        "evaluate_utterances": 3, "beam": 2, "longest": 2}


def _measure(variants=("none",), updates=4, every=2, seeds=(0,), **settings):
    return shift.measure(Training(Las(), variants, "smoke", {**TINY, **settings}, runtime.backend("numpy"), seeds, updates, every))


def test_movements_are_by_the_deviation_before():
    before = Distribution(np.array([0.0, 1.0, 5.0]), np.array([2.0, 0.5, 0.0]))
    after = Distribution(np.array([1.0, 0.0, 9.0]), np.array([1.0, 0.6, 3.0]))
    assert shift.movement_of(before, after) == pytest.approx(((0.5 + 2.0) / 2, (0.5 + 0.2) / 2))  # the third was constant
    assert shift.movement_of(before, before) == (0.0, 0.0)
    assert all(np.isnan(shift.movement_of(before._replace(deviation=np.zeros(3)), after)))


def test_a_scale_of_all_inputs_changes_no_movement():
    rng = np.random.default_rng(0)
    before, after = (Distribution(rng.standard_normal(5), 0.5 + rng.random(5)) for _ in range(2))
    scaled = [Distribution(100 * one.mean, 100 * one.deviation) for one in (before, after)]
    assert shift.movement_of(*scaled) == pytest.approx(shift.movement_of(before, after))


def test_nothing_moves_without_learning_and_everything_with_it():
    still, moving = (_measure(learning_rate=rate) for rate in (0.0, 1e-2))
    assert all(value == 0 for m in still.movements for value in (*m.means, *m.deviations))
    assert all(value > 0 for m in moving.movements for value in (*m.means, *m.deviations))


def test_intervals_and_layers_of_each_variant():
    measured = _measure(("none", "both"), updates=5, every=2)
    assert measured.layers() == ["listener 1, gates", "listener 2", "listener 2, gates", "attention", "softmax"]
    assert [(m.variant, m.layer) for m in measured.movements] == [(v, layer) for v in ("none", "both") for layer in measured.layers()]
    assert all(m.updates == [2, 4] for m in measured.movements) and list(measured.losses) == ["none", "both"]
    assert measured.dataset == "made sounds, synthetic" and [m.layer for m in measured.of("both", "softmax")] == ["softmax"]


def test_each_seed_is_a_training_of_its_own():
    several, alone = _measure(seeds=(0, 3)), _measure(seeds=(3,))
    assert [(m.layer, m.seed) for m in several.movements] == [(layer, seed) for seed in (0, 3) for layer in alone.layers()]
    assert several.seeds == [0, 3] and several.losses["none"][1:] == alone.losses["none"] != several.losses["none"][:1]
    assert [m for m in several.movements if m.seed == 3] == alone.movements


def test_the_movement_is_that_of_the_trainers_own_states():
    task, backend = Las(), runtime.backend("numpy")
    measured = _measure(updates=2, every=1)
    cfg = make_config(task, "none", "smoke", TINY)
    splits = task.data(cfg)
    trainer = Trainer(task, "none", cfg, splits, backend)
    probe = runtime.to_tensors(splits.train(2), backend)
    rows = []
    for _ in range(3):
        rows.append(task.layer_inputs(trainer.model, trainer.state["params"], probe)["softmax"].astype(np.float64))
        trainer.advance()
    moved = [np.mean(np.abs(b.mean(0) - a.mean(0)) / a.std(0)) for a, b in itertools.pairwise(rows)]
    [softmax] = measured.of("none", "softmax")
    np.testing.assert_allclose(softmax.means, moved, rtol=1e-6)


def test_an_interval_must_fit():
    for updates, every in ((0, 1), (3, 4), (3, 0)):
        check_error(UsageError, lambda u=updates, e=every: _measure(updates=u, every=e), "[shift]", str(every))
