"""The range test of learning rates: a quadratic whose course is known, noise, divergence, tasks, and wrong calls."""

import csv
from importlib.util import find_spec

import numpy as np
import pytest
from small_runs import Line

import duoln
from duoln.errors import DivergedError, DtypeError, ShapeError, UsageError
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training import rate_test
from duoln.training.rate_test import smooth, task_rates


def descent(curvature=1.0, start=3.0, floor=0.0, noise=0.0):
    """Gradient descent on curvature / 2 * w**2 + floor."""
    w, rng = start, np.random.default_rng(0)

    def step(rate):
        nonlocal w
        loss = curvature / 2 * w * w + floor + noise * rng.standard_normal()
        w -= rate * curvature * w
        return loss

    return step


@pytest.mark.parametrize("curvature", [1.0, 100.0])
def test_a_quadratic(curvature):
    test = duoln.find_rate(descent(curvature), low=1e-4, high=1e3, updates=140)
    rates = np.geomspace(1e-4, 1e3, 140)
    count = len(test.rates)
    np.testing.assert_array_equal(test.rates, rates[:count])
    weights = 3 * np.concatenate([[1], np.cumprod(1 - curvature * rates[:count - 1])])
    np.testing.assert_allclose(test.losses, curvature / 2 * weights ** 2, rtol=1e-9)
    assert test.diverged and count < 140 and rates[count - 1] > 2 / curvature, "descent diverges above 2 / curvature"
    least = int((rates < 2 / curvature).sum())  # an update makes the weight smaller up to that rate, and larger after it
    assert test.losses.argmin() == least and test.tenth_of_minimum == pytest.approx(test.minimum / 10)
    assert rates[least - 7] <= test.minimum <= rates[least + 7], "7 are the neighbours on each side"
    fastest = rates[:count][np.gradient(test.losses, np.log(test.rates))[:least].argmin()]
    assert 0.75 * fastest < test.steepest < 1.33 * fastest


@pytest.mark.parametrize("floor", [0.0, 50.0, -200.0])
def test_noise_and_a_loss_of_any_sign(floor):
    test = duoln.find_rate(descent(noise=0.05, floor=floor), 1e-4, 1e3, 140)
    plain = duoln.find_rate(descent(), 1e-4, 1e3, 140)
    assert test.diverged and 0.75 < test.steepest / plain.steepest < 1.33 and 0.3 < test.minimum < 6


def test_a_loss_that_never_falls_suggests_nothing():
    for losses in (lambda rate: 2.0, lambda rate: 1.0 + rate):
        test = duoln.find_rate(losses)
        assert (test.minimum, test.steepest, test.tenth_of_minimum, test.diverged, len(test.rates)) == (None, None, None, False, 100)


def _tested(losses):
    left = iter(losses)
    return duoln.find_rate(lambda rate: next(left))


def test_a_smoothed_loss_is_never_beyond_its_neighbours():
    test = _tested([*np.full(94, 0.3), 0.28, 0.22, 0.15, 0.08, 0.03, 0.01])
    assert test.losses.min() <= test.smoothed.min() and test.smoothed.max() <= test.losses.max() and test.minimum == test.rates[-1]


def test_the_first_and_last_updates_are_not_where_the_loss_falls_fastest():
    noisy = _tested([0.9, 0.6, 0.5, *(0.5 - np.linspace(0, 0.2, 90)), *[0.31] * 7])
    assert noisy.steepest in noisy.rates[5:95]
    assert _tested([*np.full(97, 0.3), 0.28, 0.2, 0.1]).steepest in noisy.rates[5:95]


def test_a_fall_after_the_minimum_does_not_count():
    losses = iter([*np.linspace(3, 2, 60), *np.linspace(2, 2.9, 30), *np.linspace(2.9, 2.2, 10)])
    test = duoln.find_rate(lambda rate: next(losses))
    assert not test.diverged and test.steepest < test.minimum == pytest.approx(test.rates[59], rel=0.8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [1, 37, 99])
def test_a_loss_that_is_not_finite_ends_it(bad, at):
    losses = iter([*np.linspace(3, 2, at), *[bad] * 100])
    made = []
    test = duoln.find_rate(lambda rate: made.append(rate) or next(losses))
    assert test.diverged and len(test.losses) == len(test.rates) == len(test.smoothed) == at and len(made) == at + 1
    assert np.isfinite(test.losses).all()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_smoothing_is_by_lines_of_least_squares(width):
    x, y = np.log(np.geomspace(1e-3, 1, 12)), np.random.default_rng(1).standard_normal(12)
    values, slopes = smooth(x, y, width)
    for k in range(12):
        near = slice(max(k - width, 0), k + width + 1)
        slope, offset = np.polyfit(x[near], y[near], 1)
        assert slopes[k] == pytest.approx(slope) and values[k] == pytest.approx(offset + slope * x[k])
    values, slopes = smooth(x, 3 * x - 1, width)
    np.testing.assert_allclose(values, 3 * x - 1)
    np.testing.assert_allclose(slopes, 3)
    assert smooth([1.0], np.array([2.0]), width) == (np.array([2.0]), np.array([0.0]))


def test_losses_of_every_kind(be):
    want = duoln.find_rate(descent(), 1e-3, 1.0, 10).losses
    for kind in (float, np.float64, np.array, lambda x: duoln.tensor(np.float32(x), be)):
        step = descent()
        np.testing.assert_allclose(duoln.find_rate(lambda rate, step=step, kind=kind: kind(step(rate)), 1e-3, 1.0, 10).losses, want, rtol=1e-6)


@pytest.mark.long
def test_a_task_from_its_first_parameters(be):
    task = Line()
    cfg = make_config(task, "plain", None, {})
    splits = task.data(cfg)
    first, second = (task_rates(task, cfg, splits, be, 1e-5, 10.0, 60) for _ in range(2))
    assert first.losses.tobytes() == second.losses.tobytes()
    batch = duoln.to_tensors(splits.train(0), be)
    model = task.model(cfg)
    start = task.loss(model, duoln.to_tensors(model.init(cfg.seed), be), batch).item()
    assert first.losses[0] == pytest.approx(start, rel=1e-5)
    assert 1e-4 < first.steepest < 1.0 and first.tenth_of_minimum < first.minimum


def test_the_optimizer_of_the_task_makes_the_updates(numpy_backend):
    """Against the same updates by hand."""
    task = Line()
    cfg = make_config(task, "plain", None, {})
    splits, model, optimizer = task.data(cfg), task.model(cfg), task.optimizer(cfg, 1000)
    test = task_rates(task, cfg, splits, numpy_backend, 1e-4, 1e-1, 10)
    params = duoln.to_tensors(model.init(cfg.seed), numpy_backend)
    slots, losses = optimizer.init(params), []
    for k, rate in enumerate(np.geomspace(1e-4, 1e-1, 10)):
        batch = duoln.to_tensors(splits.train(k), numpy_backend)
        loss, gradients = duoln.value_and_grad(lambda p, batch=batch: task.loss(model, p, batch))(params)
        params, slots = optimizer.update(params, gradients, slots, duoln.tensor(np.float32(rate), numpy_backend))
        losses.append(loss.item())
    np.testing.assert_allclose(test.losses, losses, rtol=1e-6)


@pytest.mark.parametrize(("error", "call", "words"), [
    (UsageError, lambda: duoln.find_rate(descent(), 1.0, 1.0), ("[find_rate] expected low below high, found 1 and 1",)),
    (UsageError, lambda: duoln.find_rate(descent(), 0.0, 1.0), ("[find_rate] low: expected a finite number above 0, found 0",)),
    (UsageError, lambda: duoln.find_rate(descent(), 1e-3, np.inf), ("[find_rate] high", "inf")),
    (DtypeError, lambda: duoln.find_rate(descent(), "1e-3"), ("[find_rate] low", "'1e-3'")),
    (ShapeError, lambda: duoln.find_rate(descent(), updates=9), ("[find_rate] updates: expected an integer of at least 10, found 9",)),
    (DtypeError, lambda: duoln.find_rate(descent(), updates=20.5), ("[find_rate] updates",)),
    (DtypeError, lambda: duoln.find_rate(3), ("[find_rate] train_step: expected a function, found 3",)),
    (DtypeError, lambda: duoln.find_rate(lambda rate: None), ("[find_rate] expected a number as the loss of an update, found None",)),
    (DtypeError, lambda: duoln.find_rate(lambda rate: (1.0, 2.0)), ("[find_rate] expected a number", "tuple")),
    (ShapeError, lambda: duoln.find_rate(lambda rate: duoln.tensor([1.0], "numpy")), ("[find_rate] expected a loss of shape (), found (1,)",)),
    (DivergedError, lambda: duoln.find_rate(lambda rate: np.nan), ("[find_rate] expected a finite loss of the first update, found nan",)),
    (TypeError, lambda: duoln.find_rate(descent(), lr=3), ("lr",))])
def test_wrong_calls(error, call, words):
    check_error(error, call, *words)


def test_the_table_has_every_update(tmp_path):
    test = duoln.find_rate(descent(), 1e-3, 1.0, 20)
    rows = list(csv.DictReader(rate_test.write_table(test, tmp_path / "rates.csv").read_text().splitlines()))
    assert len(rows) == len(test.rates)
    for name in ("rates", "losses", "smoothed"):
        key = {"rates": "rate", "losses": "loss"}.get(name, name)
        assert [float(row[key]) for row in rows] == getattr(test, name).tolist()


@pytest.mark.long
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("losses", [descent(), lambda rate: 2.0, lambda rate: -1.0 - rate, descent(floor=-30, noise=1.0)])
def test_the_picture_is_drawn_whatever_the_losses(tmp_path, losses):
    target = rate_test.draw("a $title", duoln.find_rate(losses, 1e-3, 1e3, 50), 0.1, tmp_path / "rates.png")
    assert target.read_bytes()[:4] == b"\x89PNG"
