"""The statistics of layers: against NumPy's by hand, without an effect on the training, in the log, resumed and stopped."""

import math
import os
import signal

import numpy as np
import pytest
from conftest import ON_NUMPY
from small_runs import At, Line, fit_into, line_trainer, state_bits

import duoln
from duoln import nn, ops, tree
from duoln.errors import DataFormatError, DivergedError, DtypeError, Interrupted, ShapeError, UsageError
from duoln.runs import curves as run_curves
from duoln.runs.norm_stats import LayerStats, entry_of, read_entry
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.testing import check_error
from duoln.training.norm_stats import Watch, _Moments, measure
from duoln.training.trainer import Trainer


def watched_run(be, path, every=None, resume=False, listeners=(), watch="norm-stats", **settings):
    """A trainer after its run, and the run's statistics by update."""
    trainer = line_trainer(be, **settings)
    fit_into(trainer, path, be, listeners, resume, watch and Watch(watch, every))
    return trainer, run_curves.read_curves([path])[0].layers


def line_by_hand(params, x, y):
    """The outputs of the layers of `Line`'s model, and its loss, in float64."""
    first = x @ params["0"]["weight"] + params["0"]["bias"]
    norm = (first - first.mean(1, keepdims=True)) / np.sqrt(first.var(1, keepdims=True) + 1e-5) * params["1"]["gain"] + params["1"]["bias"]
    last = np.tanh(norm) @ params["3"]["weight"] + params["3"]["bias"]
    return {"0": first, "1": norm, "3": last}, np.mean((last - y) ** 2)


def norm_by_hand(params, layer, x, y, eps=1e-6):
    """The norm of a layer's gradient by central differences in float64."""
    squares = 0.0
    for array in params[layer].values():
        for place in np.ndindex(array.shape):
            before = array[place]
            ends = []
            for shift in (eps, -eps):
                array[place] = before + shift
                ends.append(line_by_hand(params, x, y)[1])
            array[place] = before
            squares += ((ends[0] - ends[1]) / (2 * eps)) ** 2
    return math.sqrt(squares)


@pytest.mark.parametrize("updates", [0, 4, 15])
@ON_NUMPY
def test_they_are_those_by_hand(be, updates):
    trainer = line_trainer(be)
    for _ in range(updates):
        trainer.advance()
    stats = measure(trainer)
    batch = trainer.splits.train(min(updates, 14))
    x, y = (batch[name].astype(np.float64) for name in ("x", "y"))
    params = tree.map(lambda t: t.numpy().astype(np.float64), trainer.state["params"])
    outputs, _ = line_by_hand(params, x, y)
    assert list(stats) == ["0", "1", "3"]
    for path, output in outputs.items():
        assert stats[path].mean == pytest.approx(output.mean(), rel=1e-4, abs=1e-6)
        assert stats[path].variance == pytest.approx(output.var(), rel=1e-4)
        assert stats[path].gradient_norm == pytest.approx(norm_by_hand(params, path, x, y), rel=1e-3)


def test_the_norms_are_parts_of_that_of_the_next_update(be):
    trainer = line_trainer(be)
    trainer.advance()
    parts = [stats.gradient_norm for stats in measure(trainer).values()]
    trainer.advance()
    assert math.sqrt(sum(part ** 2 for part in parts)) == pytest.approx(trainer.gradient_norm, rel=1e-5)


def test_measuring_changes_no_bit_of_the_training(be, tmp_path):
    plain, none = watched_run(be, tmp_path / "plain", watch=None)
    every, stats = watched_run(be, tmp_path / "every", every=1)
    assert none == {} and sorted(stats) == list(range(16))
    assert state_bits(plain) == state_bits(every) and plain.evaluated == every.evaluated
    losses = [run_curves.read_curves([tmp_path / name])[0].losses for name in ("plain", "every")]
    assert losses[0] == losses[1] and len(losses[0]) == 15


@pytest.mark.parametrize(("every", "settings", "steps"), [
    (None, {}, [0, 5, 10, 15]), (None, {"evaluate_every": 4}, [0, 4, 8, 12, 15]), (4, {}, [0, 4, 8, 12]), (100, {}, [0]), (None, {"epochs": 0}, [0])])
def test_when(numpy_backend, tmp_path, every, settings, steps):
    assert sorted(watched_run(numpy_backend, tmp_path, every, **settings)[1]) == steps


@pytest.mark.few
@pytest.mark.parametrize("stop", [5, 7])
def test_stopped_and_resumed_is_as_not_stopped(be, tmp_path, stop):
    whole, stats = watched_run(be, tmp_path / "whole", every=2)
    with pytest.raises(Interrupted):
        watched_run(be, tmp_path / "parts", every=2, listeners=[At(stop, lambda: os.kill(os.getpid(), signal.SIGINT))])
    assert max(run_curves.read_curves([tmp_path / "parts"])[0].layers) <= stop + 1
    resumed, seconds = watched_run(be, tmp_path / "parts", every=2, resume=True)
    assert state_bits(whole) == state_bits(resumed) and seconds == stats and len(stats) == 8


def test_a_run_that_diverges_keeps_what_was_measured(numpy_backend, tmp_path):
    with pytest.raises(DivergedError):
        watched_run(numpy_backend, tmp_path, every=1, poison=4)
    stats = run_curves.read_curves([tmp_path])[0].layers
    assert math.isfinite(stats[3]["3"].mean) and math.isnan(stats[4]["3"].mean), "the next batch has a NaN"
    assert math.isnan(stats[4]["0"].gradient_norm)


@pytest.mark.long
@pytest.mark.parametrize(("name", "variant"), [
    ("draw", "ln"), ("las", "both"), ("attentive_reader", "ln"), ("skip_thoughts", "ln"), ("handwriting", "ln"), ("mnist", "bn"),
    ("convnet", "ln"), ("order_embeddings", "ln")])
def test_every_task_has_them(name, variant, numpy_backend):
    task = find_task(name)
    cfg = make_config(task, variant, "smoke")
    trainer = Trainer(task, variant, cfg, task.data(cfg), numpy_backend)
    stats = measure(trainer)
    norms = [s.gradient_norm for s in stats.values() if s.gradient_norm is not None]
    assert sum(s.variance is not None for s in stats.values()) >= len(stats) - 3 and all(map(math.isfinite, norms))
    trainer.advance()
    assert math.sqrt(sum(norm ** 2 for norm in norms)) == pytest.approx(trainer.gradient_norm, rel=1e-4)


def test_in_bf16(numpy_backend):
    task = Line()
    cfg = make_config(task, "plain", None, {})
    trainer = Trainer(task, "plain", cfg, task.data(cfg), numpy_backend, precision="bf16")
    narrow, wide = measure(trainer), measure(line_trainer(numpy_backend))
    for path, stats in wide.items():
        assert narrow[path] == pytest.approx(stats, rel=0.03, abs=0.01) and narrow[path] != stats


class Parts(Line):
    """A model with a layer that is not called, one without arrays, and arrays beside its layers."""

    class Model(nn.Module):
        def __init__(self):
            self.linear, self.unused, self.nothing = nn.Linear(1, 1), nn.Linear(2, 3), nn.Sequential(ops.tanh)

        def weights(self, rng):
            return {"scale": np.ones(1, np.float32)}

        def __call__(self, params, x):
            return self.nothing(params["nothing"], self.linear(params["linear"], x)) * params["scale"]

    def model(self, cfg):
        return self.Model()


def test_what_a_layer_does_not_have(numpy_backend):
    task = Parts()
    cfg = make_config(task, "plain", None, {})
    stats = measure(Trainer(task, "plain", cfg, task.data(cfg), numpy_backend))
    assert list(stats) == ["", "linear", "unused", "nothing"]
    assert stats["unused"] == LayerStats(None, None, 0.0) and stats["nothing"].gradient_norm is None
    assert None not in stats[""] and None not in stats["linear"]
    assert read_entry("here", entry_of(3, stats)) == (3, stats)


@pytest.mark.parametrize("parts", [[1], [5], [1, 1, 3], [4, 0, 2], [1000, 7]])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_merged_moments_are_those_of_all(parts, mean):
    values = [(np.random.default_rng(k).standard_normal(n) + mean).astype(np.float32) for k, n in enumerate(parts)]
    moments = _Moments(0, 0.0, 0.0)
    for part in values:
        moments = moments.with_values(part)
    every = np.concatenate(values).astype(np.float64)
    assert moments.size == len(every)
    assert moments.mean == pytest.approx(every.mean(), rel=1e-12) and moments.variance == pytest.approx(every.var(), rel=1e-9, abs=1e-20)
    assert math.isnan(_Moments(0, 0.0, 0.0).variance)


@pytest.mark.long
def test_from_python(be, tmp_path):
    _, stats = watched_run(be, tmp_path, every=4)
    run = duoln.tasks.train(Line(), variant="plain", backend=be, watch="norm-stats", watch_every=4)
    assert run.layers == stats and list(run.layers) == [0, 4, 8, 12]
    assert duoln.tasks.train(Line(), variant="plain", backend=be, epochs=1).layers == {}
    assert list(duoln.tasks.train(Line(), variant="plain", backend=be, epochs=1, watch="norm-stats").layers) == [0, 5]


@pytest.mark.parametrize(("error", "args", "words"), [
    (UsageError, ("norm_stats",), ("[watch]", "'norm-stats'", "found 'norm_stats'", "did you mean 'norm-stats'")), (DtypeError, (3,), ("[watch]", "found 3 (int)")),
    (ShapeError, ("norm-stats", 0), ("[watch] every: expected an integer of at least 1, found 0",)), (DtypeError, ("norm-stats", 2.5), ("[watch] every", "2.5"))])
def test_wrong_watches(error, args, words):
    check_error(error, lambda: Watch(*args), *words)


@pytest.mark.parametrize("entry", [
    {"update": "3", "layers": {}}, {"layers": {}}, {"update": 3}, {"update": 3, "layers": [1]}, {"update": 3, "layers": {"a": 1}},
    {"update": 3, "layers": {"a": {"mean": "x"}}}, {"update": 3, "layers": {"a": {"gradient_norm": None}}}])
def test_a_damaged_entry_is_named(entry):
    check_error(DataFormatError, lambda: read_entry("log", entry), "log", "update", str(entry))
