"""Runs in bf16: what is rounded and what stays in float32, where the precision is named, and what is refused."""

import json

import numpy as np
import pytest
from small_runs import Line, fit_into, line_trainer, state_bits

import duoln
from duoln import cli, ops, tree, value_and_grad
from duoln.cli.run import run_task
from duoln.errors import CheckpointError, DataFormatError, UsageError
from duoln.runs import checkpoint
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.testing import check_error
from duoln.training.train_step import make_gradients, make_step
from duoln.training.trainer import Trainer


def _trainer(be, precision="bf16", **settings):
    task = Line()
    cfg = make_config(task, "plain", None, settings)
    return Trainer(task, "plain", cfg, task.data(cfg), be, precision=precision)


def _batch(trainer):
    return duoln.to_tensors(trainer.splits.train(0), trainer.backend)


def _through_bfloat16(t):
    return t.astype("bfloat16").astype("float32")


def test_the_model_gets_rounded_weights_and_batches(be):
    trainer, seen = _trainer(be), {}
    loss = trainer.task.loss
    trainer.task.loss = lambda model, params, batch: seen.update(params=params, batch=batch) or loss(model, params, batch)
    value, gradients = make_gradients(trainer.task, trainer.model, "bf16")(trainer.state["params"], _batch(trainer))
    assert {t.ndim for t in tree.leaves(seen["params"])} == {1, 2}
    for t in tree.leaves(seen["params"]):
        assert t.dtype == ("bfloat16" if t.ndim == 2 else "float32")
    assert {t.dtype for t in tree.leaves(seen["batch"])} == {"bfloat16"} and value.dtype == "float32"
    for p, g in zip(tree.leaves(trainer.state["params"]), tree.leaves(gradients), strict=True):
        assert p.dtype == g.dtype == "float32" and g.shape == p.shape


def test_the_step_by_hand(numpy_backend):
    """The gradients are those of the model whose weights are rounded, with respect to the weights that are not."""
    trainer = _trainer(numpy_backend)
    batch, params = _batch(trainer), trainer.state["params"]

    def by_hand(p):
        first, norm, last = (p[key] for key in ("0", "1", "3"))
        h = ops.linear(batch["x"].astype("bfloat16"), first["weight"].astype("bfloat16"), first["bias"])
        y = ops.linear(ops.tanh(ops.layer_norm(h, norm["gain"], norm["bias"])), last["weight"].astype("bfloat16"), last["bias"])
        return ops.mean(ops.square(y - batch["y"].astype("bfloat16")))

    value, gradients = make_gradients(trainer.task, trainer.model, "bf16")(trainer.state["params"], batch)
    expected, of_hand = value_and_grad(by_hand)(params)
    assert value.item() == expected.item()
    for mine, own in zip(tree.leaves(gradients), tree.leaves(of_hand), strict=True):
        np.testing.assert_array_equal(mine.numpy(), own.numpy())


def test_a_small_step_is_not_lost(numpy_backend):
    """A step below half a unit of bfloat16 moves the float32 parameter."""
    trainer = _trainer(numpy_backend, learning_rate=1e-5)
    before = [t.numpy() for t in tree.leaves(trainer.state["params"])]
    trainer.advance()
    for a, t in zip(before, tree.leaves(trainer.state["params"]), strict=True):
        assert t.dtype == "float32" and (a != t.numpy()).all()


def test_it_learns_as_float32_does(be, tmp_path):
    if be.lazy:
        pytest.skip("it compiles by itself, which takes it long on a CPU")
    figures = [fit_into(_trainer(be, precision, epochs=6, learning_rate=0.05), tmp_path / precision, be) for precision in ("float32", "bf16")]
    first, second = (f["valid_mse"] for f in figures)
    assert second < 1.0 and abs(first - second) < 0.1 and first != second


def test_evaluation_rounds_too(numpy_backend):
    rounded, plain = _trainer(numpy_backend), _trainer(numpy_backend, "float32")
    plain.state = {**plain.state, "params": tree.map(lambda t: _through_bfloat16(t) if t.ndim > 1 else t, plain.state["params"])}
    near, far = rounded.evaluate(), line_trainer(numpy_backend).evaluate()
    assert near["valid_mse"] != far["valid_mse"]
    assert abs(near["valid_mse"] - plain.evaluate()["valid_mse"]) < 0.05 * near["valid_mse"]


def test_a_compiled_step_has_the_bits_of_the_plain_one(numpy_backend):
    trainer, plain = _trainer(numpy_backend), _trainer(numpy_backend)
    plain._step = make_step(plain.task, plain.model, plain.optimizer, "bf16")
    for _ in range(5):
        assert trainer.advance() == plain.advance()
    assert state_bits(trainer) == state_bits(plain)


def test_every_record_names_the_precision(numpy_backend, tmp_path):
    duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / "a", precision="bf16")
    duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / "b")
    for name, precision in (("a", "bf16"), ("b", "float32")):
        folder = tmp_path / name
        header = json.loads((folder / "log.jsonl").read_text().splitlines()[0])
        notes = checkpoint.newest(folder / "checkpoints")[0].notes
        assert header["precision"] == notes["precision"] == precision
        assert [json.loads((folder / file).read_text())["precision"] for file in ("config.json", "result.json")] == [precision] * 2


def test_a_resumed_run_keeps_its_precision(numpy_backend, tmp_path):
    whole = duoln.tasks.train(Line(), "plain", backend=numpy_backend, precision="bf16", epochs=2)
    duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, precision="bf16", epochs=1)
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, precision="float32"),
                "[precision]", "expected bf16", "config.json", "found float32")
    saved = checkpoint.newest(tmp_path / "checkpoints")[0]
    check_error(CheckpointError, lambda: line_trainer(numpy_backend).resume(saved), "expected precision 'float32', found 'bf16'")
    again = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, epochs=2)
    assert json.loads((tmp_path / "config.json").read_text())["precision"] == "bf16"
    for mine, own in zip(tree.leaves(again.params), tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(mine.numpy(), own.numpy())


def test_damaged_folders(numpy_backend, tmp_path):
    duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, epochs=1)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    for precision in (None, 16):
        path.write_text(json.dumps({**content, "precision": precision}))
        check_error(DataFormatError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True),
                    "config.json", "float32, bf16 as precision", str(precision))


def test_unknown_precisions(numpy_backend, capsys):
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, precision="bfloat16"),
                "[train]", "'float32' or 'bf16'", "did you mean 'bf16'")
    check_error(UsageError, lambda: _trainer(numpy_backend, "fp8"), "precision", "'fp8'")
    assert cli.main(["run", "mnist", "--precision", "bf61"]) == 2
    assert "bf16" in capsys.readouterr().err


@pytest.mark.long
def test_the_command_line(tmp_path, capsys):
    line = ["--backend", "numpy", "--epochs", "1"]
    for name, words in (("a", ["--precision", "bf16"]), ("b", [])):
        assert run_task(Line, [*line, "--out", str(tmp_path / name), *words], preset="smoke", variants=["plain"]) == 0
        assert ("precision: bf16" in capsys.readouterr().err) == (name == "a")
    resumed = ["--backend", "numpy", "--out", str(tmp_path / "a"), "--resume", "auto"]
    assert run_task(Line, [*resumed, "--precision", "float32"], preset="smoke") == 2
    assert "[precision] expected bf16" in capsys.readouterr().err
    assert run_task(Line, [*resumed, "--epochs", "2"], preset="smoke", variants=["plain", "fast"]) == 0
    assert {json.loads((tmp_path / "a" / name / "config.json").read_text())["precision"] for name in ("plain", "fast")} == {"bf16"}


def test_a_report_shows_it_where_it_differs(numpy_backend, tmp_path):
    from duoln.runs.curves import read_curves
    from duoln.runs.series import series_of

    for name, precision in (("a", "bf16"), ("b", "float32"), ("c", "bf16")):
        duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path / name, precision=precision, epochs=1)
    task = Line()
    both = series_of(task, read_curves([tmp_path]))
    assert [s.differences for s in both] == [{"precision": "bf16"}, {"precision": "float32"}, {"precision": "bf16"}]
    assert all(not s.differences for s in series_of(task, read_curves([tmp_path / "a", tmp_path / "c"])))


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist", *(pytest.param(task, marks=pytest.mark.minutes) for task in (
    "attentive_reader", "convnet", "draw", "handwriting", "las", "order_embeddings", "skip_thoughts", "transformer"))])
def test_every_experiment_trains(name, numpy_backend):
    """Losses begin and go on as those in float32."""
    variant = next(v for v in ("ln", "both", "pre") if v in find_task(name).variants)
    runs = [duoln.tasks.train(name, variant, preset="smoke", backend=numpy_backend, precision=precision) for precision in ("float32", "bf16")]
    first, second = (run.losses["loss"] for run in runs)
    assert np.isfinite(second).all()
    np.testing.assert_allclose(second[0], first[0], rtol=0.02)
    assert np.mean(second) <= 1.1 * np.mean(first)
