"""A session: exact resume, interruption, divergence, the log, patience, schedules, and states of 16 bits."""

import dataclasses
import json
import math
import os
import signal
import threading
import time
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import ON_NUMPY
from small_runs import VALUES, At, Line, Told, fit_into, line_trainer, state_bits

import duoln
from duoln import nn, ops, optim, tree
from duoln.core import watched
from duoln.errors import (
    CheckpointError,
    DivergedError,
    DtypeError,
    Interrupted,
    MemoryExhaustedError,
    NotFiniteError,
    NotFiniteWarning,
    ScheduleWarning,
    ShapeError,
    TaskError,
)
from duoln.runs import checkpoint, curves, tensor_file
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.runs.trained import load_trained
from duoln.tasks import make_config
from duoln.testing import check_error, check_task
from duoln.training.train_step import make_step
from duoln.training.trainer import Trainer


@ON_NUMPY
def test_it_is_a_task(be):
    check_task(Line(), backend=be)


@ON_NUMPY
def test_a_run_leaves_log_result_config_and_checkpoints(be, tmp_path):
    result = fit_into(line_trainer(be), tmp_path, be)
    assert result["updates"] == 15 and result["epochs"] == 3 and math.isfinite(result["valid_mse"])
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert json.loads((tmp_path / "config.json").read_text())["config"]["batch_size"] == 8
    events = list(read_log(tmp_path))
    assert [e["event"] for e in events].count("update") == 15
    start = events[0]
    assert start["dataset"] == {"name": "a line", "provenance": "synthetic"} and start["backend"]["name"] == be.name
    assert {"duoln", "numpy", "python", "seed", "platform"} <= start.keys()
    assert [e["update"] for e in events if e["event"] == "evaluation"] == [5, 10, 15]
    assert events[-1]["event"] == "end" and events[-1]["status"] == "done"
    assert [p.name for p in checkpoint.list_paths(tmp_path / "checkpoints")] == [
        "update-000000010.safetensors", "update-000000015.safetensors"]


def test_ctrl_c_at_the_last_step_is_heard(numpy_backend, tmp_path):
    with pytest.raises(Interrupted, match="after update 15"):
        fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, [At(15, lambda: os.kill(os.getpid(), signal.SIGINT))])
    assert fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, resume=True)["updates"] == 15


@pytest.mark.few
@pytest.mark.parametrize("stop", [5, 7, 14])
def test_ctrl_c_then_resume_equals_not_stopping(be, tmp_path, stop):
    whole = line_trainer(be)
    fit_into(whole, tmp_path / "whole", be)
    late = be.queues and stop % 5 != 0  # the figures come when the next update is queued, but before an evaluation
    with pytest.raises(Interrupted, match=f"after update {stop + late}; checkpoint .*cut"):
        fit_into(line_trainer(be), tmp_path / "cut", be, [At(stop, lambda: os.kill(os.getpid(), signal.SIGINT))])
    resumed = line_trainer(be)
    fit_into(resumed, tmp_path / "cut", be, resume=True)
    assert state_bits(resumed) == state_bits(whole) and resumed.update == 15
    events = list(read_log(tmp_path / "cut"))
    assert [e["status"] for e in events if e["event"] == "end"] == ["interrupted", "done"]
    assert [e["update"] for e in events if e["event"] == "update"] == list(range(1, 16))


def test_a_second_ctrl_c_is_heard_at_once(numpy_backend, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # Python calls the handler of the first between two instructions
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

    before, trainer = signal.getsignal(signal.SIGINT), line_trainer(numpy_backend)
    with pytest.raises(KeyboardInterrupt):
        fit_into(trainer, tmp_path, numpy_backend, [At(7, twice)])
    assert trainer.update == 7 and checkpoint.list_paths(tmp_path / "checkpoints")[-1].name == "update-000000005.safetensors"
    assert signal.getsignal(signal.SIGINT) is before


def test_training_works_in_a_thread(numpy_backend, tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)))
    thread.start()
    thread.join()
    assert results and results[0]["updates"] == 15


def test_resume_may_go_on_for_longer(numpy_backend, tmp_path):
    whole = line_trainer(numpy_backend, epochs=4)
    fit_into(whole, tmp_path / "whole", numpy_backend)
    fit_into(line_trainer(numpy_backend, epochs=2), tmp_path / "cut", numpy_backend)
    more = line_trainer(numpy_backend, epochs=4)
    fit_into(more, tmp_path / "cut", numpy_backend, resume=True)
    assert state_bits(more) == state_bits(whole)


@pytest.mark.long
def test_a_checkpoint_goes_on_on_another_backend(tmp_path):
    from conftest import get_backend

    a, b = get_backend("numpy"), get_backend("mlx")
    whole = line_trainer(a)
    fit_into(whole, tmp_path / "whole", a)
    with pytest.raises(Interrupted):
        fit_into(line_trainer(a), tmp_path / "cut", a, [At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])
    resumed = line_trainer(b)
    check_error(CheckpointError, lambda: fit_into(resumed, tmp_path / "cut", b, resume=True), "expected backend numpy, found mlx")
    fit_into(resumed, tmp_path / "cut", b, resume="anyway")
    for mine, theirs in zip(tree.leaves(resumed.state), tree.leaves(whole.state), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5)


def test_another_runs_checkpoint_is_refused(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend, "fast"), tmp_path, numpy_backend, resume=True),
                "variant 'fast'", "'plain'")
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend, seed=1), tmp_path, numpy_backend, resume=True),
                "seed 1", "0")
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend, batch_size=4), tmp_path, numpy_backend, resume=True),
                "batch_size 4", "8")


def test_only_damaged_checkpoints_are_an_error(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    for path in checkpoint.list_paths(tmp_path / "checkpoints"):
        path.write_bytes(b"junk")
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, resume=True), "update-")


def test_a_gradient_that_is_not_finite_stops_the_run_at_once(be):
    """The loss is finite, its gradient is not: sqrt at 0."""
    trainer = line_trainer(be)
    trainer.task.loss = lambda model, params, batch: ops.mean(ops.sqrt(0.0 * model(params, batch["x"])))
    trainer._step = duoln.compile(make_step(trainer.task, trainer.model, trainer.optimizer))
    with pytest.raises(DivergedError, match=r"the loss is 0\.0 and the norm of its gradients (nan|inf) at update 1; "
                                            "--debug-nans"), np.errstate(all="ignore"):
        trainer.advance()


@pytest.mark.parametrize("poison", [0, 2])
def test_debug_nans_names_the_operator(be, poison):
    trainer = line_trainer(be, poison=poison)
    watching = Trainer(trainer.task, "plain", trainer.cfg, trainer.splits, be, debug_nans=True)
    for _ in range(poison):
        watching.advance()
    with pytest.raises(DivergedError, match=rf"at update {poison + 1}.*operator by operator: \[linear\] rule '.*': input 0 of "
                                            r"shape \(8, 1\) has nan at \(0, 0\) \(8 of 8"):
        watching.advance()


def test_watching_sees_outputs_and_gradients(numpy_backend):
    x = duoln.tensor(np.array([[1.0, 0.0, 4.0]], np.float32), numpy_backend)
    with watched(), np.errstate(all="ignore"):
        with pytest.raises(NotFiniteError, match=r"\[log\] rule 'composed': output 0 of shape \(1, 3\) has -inf at \(0, 1\)"):
            ops.log(x)
        with pytest.raises(NotFiniteError, match=r"\[sqrt\] rule 'composed': gradient of input 0 .* has inf at \(0, 1\)"):
            duoln.value_and_grad(lambda p: ops.sum(ops.sqrt(p)))(x)
    ops.log(x + 1.0)


def test_the_log_has_the_norm_of_the_gradients(numpy_backend, tmp_path):
    trainer = line_trainer(numpy_backend)
    batch = duoln.to_tensors(trainer.splits.train(0), numpy_backend)
    _, gradients = duoln.value_and_grad(lambda p: trainer.task.loss(trainer.model, p, batch))(trainer.state["params"])
    exact = np.sqrt(sum((g.numpy().astype(np.float64) ** 2).sum() for g in tree.leaves(gradients)))
    fit_into(trainer, tmp_path, numpy_backend)
    steps = [e for e in read_log(tmp_path) if e["event"] == "update"]
    assert len(steps) == 15 and steps[0]["gradient_norm"] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("poison", [0, 3, 6])
def test_nan_loss_names_the_step_and_keeps_a_checkpoint_from_before(be, tmp_path, poison):
    with pytest.raises(DivergedError, match=f"nan at update {poison + 1}.*update-") as caught:
        fit_into(line_trainer(be, poison=poison), tmp_path, be)
    assert caught.value.exit_code == 5
    saved, refused = checkpoint.newest(tmp_path / "checkpoints")
    assert not refused and saved.update == (5 if poison == 6 else 0)
    assert all(np.isfinite(a).all() for a in saved.arrays.values())
    assert list(read_log(tmp_path))[-1]["status"] == "diverged"


def test_weights_that_are_not_finite_are_never_saved(numpy_backend, tmp_path):
    trainer = line_trainer(numpy_backend)
    trainer.state["params"]["0"]["bias"].data[:] = np.inf
    check_error(DivergedError, lambda: trainer.save(tmp_path), "params.0.bias")
    assert list(tmp_path.iterdir()) == []


def test_no_memory_says_what_to_change(numpy_backend):
    trainer = line_trainer(numpy_backend)

    def fail(*args):
        raise MemoryError("Unable to allocate 9 TiB")

    trainer._step = fail
    check_error(MemoryExhaustedError, trainer.advance, "update 1", "9 TiB", "batch_size below 8")


def test_a_failing_task_ends_the_log(numpy_backend, tmp_path):
    trainer = line_trainer(numpy_backend)
    trainer.task.metrics = lambda predict, split: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit_into(trainer, tmp_path, numpy_backend)
    assert list(read_log(tmp_path))[-1]["status"] == "failed"


def test_a_folder_that_cannot_be_made(numpy_backend, tmp_path):
    (tmp_path / "file").write_text("")
    check_error(CheckpointError, lambda: RunFolder(tmp_path / "file" / "run", numpy_backend), "cannot be written")


def test_a_log_cut_short_is_read_to_its_last_whole_line(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text()[:-30])
    assert list(read_log(tmp_path))[-1]["event"] == "evaluation"


def test_seconds_are_those_of_training(numpy_backend, tmp_path, monkeypatch):
    trainer = line_trainer(numpy_backend)
    now, step = [0.0], trainer._step

    def passing(seconds, value):
        now[0] += seconds
        return value

    monkeypatch.setattr("duoln.training.trainer.time.perf_counter", lambda: now[0])
    trainer._step = lambda *args: passing(0.5, step(*args))
    trainer.task.metrics = lambda predict, split: passing(100.0, {"mse": 0.0})
    figures = fit_into(trainer, tmp_path, numpy_backend)
    assert figures["seconds_per_update"] == 0.5 and figures["seconds_per_epoch"] == 0.5 * trainer.splits.steps_per_epoch


def test_figures_are_read_in_order_and_once(be):
    """Several updates may be queued before the first figure is read."""
    one_by_one, queued = line_trainer(be), line_trainer(be)
    losses = [one_by_one.advance() for _ in range(4)]
    for _ in range(4):
        queued.queue()
    early, late = list(queued.settle(behind=1)), list(queued.settle())
    assert [s.update for s in early] == [1, 2, 3] and [s.update for s in late] == [4] and list(queued.settle()) == []
    assert [s.loss for s in (*early, *late)] == losses and state_bits(queued) == state_bits(one_by_one)
    assert queued.gradient_norm == one_by_one.gradient_norm


@pytest.mark.parametrize(("split", "metrics", "words"), [
    ("batch", {"size": 1.0}, ["'size'", "'batch'", "'batch_size', which duoln has"]),
    ("wall", {"s": 1.0}, ["'wall_s', which duoln has"]), ("seconds", {"per_update": 1.0}, ["'seconds_per_update'"])])
def test_a_metric_with_a_name_of_ours_is_refused(numpy_backend, monkeypatch, split, metrics, words):
    trainer = line_trainer(numpy_backend)
    trainer.splits = dataclasses.replace(trainer.splits, evaluation={split: trainer.splits.evaluation["valid"]})
    monkeypatch.setattr(trainer.task, "metrics", lambda predict, part: metrics)
    check_error(TaskError, trainer.evaluate, "[line] metrics", *words)


def test_two_metrics_of_one_name_are_refused(numpy_backend, monkeypatch):
    trainer = line_trainer(numpy_backend)
    test = trainer.splits.evaluation["valid"]
    trainer.splits = dataclasses.replace(trainer.splits, evaluation={"a": test, "a_b": test})
    monkeypatch.setattr(trainer.task, "metrics", lambda predict, part: {"b_c": 1.0, "c": 2.0})
    check_error(TaskError, trainer.evaluate, "'a_b_c', which another metric has")


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


class Cosine(Line):
    """Its rate falls to 0 at the end of the training."""

    name = "cosine"

    def optimizer(self, cfg, updates):
        return optim.Adam(optim.cosine(cfg.learning_rate, 5 * cfg.epochs))


def _trained(task, be, path, epochs, resume=False):
    cfg = make_config(task, "plain", None, {"epochs": epochs})
    return fit_into(Trainer(task, "plain", cfg, task.data(cfg), be), path, be, resume=resume)


def test_a_longer_schedule_is_told(numpy_backend, tmp_path):
    assert "changes" not in _trained(Cosine(), numpy_backend, tmp_path, 2)
    assert "changes" not in _trained(Cosine(), numpy_backend, tmp_path, 2, resume=True)
    told = ["learning rate was scheduled for 2 epochs up to update 10, and is for 4 epochs since"]
    assert _trained(Cosine(), numpy_backend, tmp_path, 4, resume=True)["changes"] == told
    assert _trained(Cosine(), numpy_backend, tmp_path, 4, resume=True)["changes"] == told
    assert json.loads((tmp_path / "result.json").read_text())["changes"] == told


class Short(Line):
    """Its rate falls to 0 in a number of updates that is written down."""

    def optimizer(self, cfg, updates):
        return optim.Adam(optim.cosine(cfg.learning_rate, 10))


def test_a_rate_of_0_for_the_rest_of_a_run_is_warned_of(numpy_backend, tmp_path):
    with pytest.warns(ScheduleWarning, match=r"\[line\] learning rate: .* in the last 10 of 20 updates"):
        _trained(Short(), numpy_backend, tmp_path / "long", 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _trained(Short(), numpy_backend, tmp_path / "as planned", 2)
        assert duoln.tasks.train(Line(), "plain", backend=numpy_backend, epochs=1, learning_rate=0.0).figures["updates"] == 5


def test_a_rate_that_does_not_depend_on_the_length_is_the_same(numpy_backend, tmp_path):
    _trained(Line(), numpy_backend, tmp_path, 2)
    assert "changes" not in _trained(Line(), numpy_backend, tmp_path, 4, resume=True)


@pytest.mark.parametrize("metric", ["valid_acuracy", "train_mse"])
def test_patience_by_a_metric_that_is_not_there_is_refused(metric, numpy_backend):
    class Misspelt(Line):
        selection = (metric, "lowest")

    check_error(TaskError, lambda: duoln.tasks.train(Misspelt(), "plain", backend=numpy_backend, patience=2),
                "[line] selection", "valid_mse", f"found '{metric}'")


def trainer_of(task, be):
    cfg = make_config(task, "plain")
    return Trainer(task, "plain", cfg, task.data(cfg), be)


class Named(Line):
    """A model with children of given names, and a number of them."""

    def __init__(self, **layers):
        self.layers = layers

    def model(self, cfg):
        return nn.Sequential(nn.Linear(1, 1), **self.layers)


def test_more_arrays_than_a_header_holds(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_MAX_HEADER", 2000)
    trainer = trainer_of(Named(**{f"layer{k}": nn.LayerNorm(1) for k in range(10)}), numpy_backend)
    check_error(ShapeError, lambda: fit_into(trainer, tmp_path, numpy_backend), "[checkpoint]", "2000 bytes")
    assert trainer.update == 0


@dataclass(frozen=True)
class Momentum(optim.Optimizer):
    """SGD whose velocity is stored in 16 bits."""

    stored: str = "bfloat16"

    def start(self, params):
        return {"velocity": tree.map(lambda p: ops.zeros_like(p).astype(self.stored), params)}

    def apply(self, params, gradients, slots, rate):
        velocity = tree.map(lambda v, g: (v * 0.9 + g).astype(self.stored), slots["velocity"], gradients)
        return tree.map(lambda p, v: p - v * rate, params, velocity), {"velocity": velocity}


class Narrow(Line):
    def __init__(self, stored):
        self.stored = stored

    def optimizer(self, cfg, updates):
        return Momentum(0.01, stored=self.stored)


@pytest.mark.long
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_a_state_of_16_bits_goes_on_to_the_bit(stored, be, tmp_path):
    task = Narrow(stored)
    whole = trainer_of(task, be)
    fit_into(whole, tmp_path / "whole", be)
    with pytest.raises(Interrupted):
        fit_into(trainer_of(task, be), tmp_path / "cut", be, [At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])
    resumed = trainer_of(task, be)
    fit_into(resumed, tmp_path / "cut", be, resume=True)
    assert state_bits(resumed) == state_bits(whole) and {v.dtype for v in tree.leaves(resumed.state["slots"]["velocity"])} == {stored}
    params = load_trained(task, tmp_path / "cut", be).params
    assert [p.numpy().tobytes() for p in tree.leaves(params)] == [p.numpy().tobytes() for p in tree.leaves(whole.state["params"])]


def test_weights_that_start_in_16_bits_are_refused(be):
    """An update of them is a float32 array: the checkpoints would not fit the model."""
    class Half(Line):
        def model(self, cfg):
            return nn.Sequential(nn.Linear(1, 1, weight_init=lambda rng, shape: np.ones(shape, np.float16)))

    check_error(DtypeError, lambda: trainer_of(Half(), be), "'0.weight'", "found float16", "precision")
