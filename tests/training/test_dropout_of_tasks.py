"""A task whose model has dropout: its masks travel with the training batches."""

import json

import numpy as np
import pytest
from conftest import NAMES, ON_NUMPY, STAND_IN

import duoln
from duoln import nn, ops
from duoln.cli import main
from duoln.errors import UsageError
from duoln.runs import checkpoint
from duoln.tasks.registry import find_task
from duoln.tasks.settings import make_config
from duoln.testing import check_error
from duoln.training.train_step import TaskDropout, split_batch
from duoln.training.trainer import Trainer

SETTINGS = {"dropout": 0.4, "hidden": 32, "rows": 600, "batch_size": 100, "epochs": 2}


def trainer(be, **changes):
    task = find_task("mnist")
    cfg = make_config(task, "ln", "smoke", {**SETTINGS, **changes})
    return Trainer(task, "ln", cfg, task.data(cfg), be)


@ON_NUMPY
def test_updates_have_masks_and_evaluations_have_none(be):
    """An update by hand, with the masks that the seed gives, is that of the trainer."""
    made, by_hand = trainer(be), trainer(be)
    dropout = nn.DropoutMasks(by_hand.model, by_hand.cfg.seed)

    def loss(update):
        batch, params = duoln.to_tensors(by_hand.splits.train(update), be), by_hand.state["params"]
        masks = dropout(update, params, batch["x"])
        assert sorted(masks) == ["dropout1", "dropout2"]
        return ops.mean(ops.softmax_cross_entropy(by_hand.model(nn.with_masks(params, masks), batch["x"]), batch["label"])).item()

    first = loss(0)
    for update in range(3):
        expected = loss(update)
        assert made.advance() == pytest.approx(expected, rel=1e-4)
        assert by_hand.advance() == pytest.approx(expected, rel=1e-4)
    assert made.evaluate() == made.evaluate(), "an evaluation draws nothing"
    without = trainer(be, dropout=0.0)
    assert without.advance() != pytest.approx(first, rel=1e-3)


@ON_NUMPY
def test_a_resumed_run_has_the_same_bits(be, tmp_path):
    whole, first = trainer(be), trainer(be)
    for _ in range(9):
        whole.advance()
    for _ in range(4):
        first.advance()
    second = trainer(be)
    second.resume(checkpoint.load(first.save(tmp_path)))
    for _ in range(5):
        second.advance()
    for ours, theirs in zip(duoln.tree.leaves(second.state), duoln.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("backend", [name for name in NAMES if name != STAND_IN])
def test_runs_from_the_command_line(precision, backend, tmp_path, capsys):
    words = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    assert main(["run", "mnist", "--variant", "ln,bn", "--preset", "smoke", "--backend", backend, "--precision", precision, "--watch", "norm-stats",
                 "--out", str(tmp_path / "run"), "--json", *words]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert len(results) == 2 and all(result["test_error"] < 0.95 for result in results)


class Ranks:
    """One rank of two, as far as batches are concerned."""

    size = 2

    def __init__(self, rank):
        self.rank = rank

    def share(self, batch, axes):
        return {name: np.split(array, 2, axis=axes.get(name, 0))[self.rank] for name, array in batch.items()}


class Model(nn.Module):
    """Time-major rows, so that examples stand along the second axis of the mask."""

    def __init__(self):
        self.layer, self.drop = nn.LSTM(3, 4, layers=2, dropout=0.5), nn.Dropout(0.25)

    def __call__(self, params, x):
        return self.drop(params["drop"], self.layer(params["layer"], x)[0])


class Rows(duoln.tasks.Task):
    name, batch_axes = "rows", {"x": 1}

    def loss(self, model, params, batch):
        return ops.mean(model(params, batch["x"]))


def test_ranks_share_the_masks_of_the_whole_batch():
    batch = {"x": np.ones((5, 6, 3), np.float32)}
    whole = split_batch(TaskDropout(Rows(), Model(), 0)(3, batch))[1]
    shares = [split_batch(TaskDropout(Rows(), Model(), 0, Ranks(rank))(3, batch))[1] for rank in range(2)]
    assert len(whole) == 2
    for name, mask in whole.items():
        assert mask.shape == (5, 6, 4)
        np.testing.assert_array_equal(np.concatenate([share[name] for share in shares], axis=1), mask)


def test_a_task_without_dropout_costs_nothing():
    batch = {"x": np.ones((5, 6, 3), np.float32)}
    assert TaskDropout(Rows(), nn.LSTM(3, 4), 0)(0, batch) is batch


class Flat(nn.Module):
    """Time steps and examples in one axis, time steps first."""

    def __init__(self):
        self.drop = nn.Dropout(0.5)

    def __call__(self, params, x):
        return self.drop(params["drop"], x.reshape(-1, 3))


def test_ranks_refuse_masks_whose_examples_lie_apart():
    batch = {"x": np.ones((5, 6, 3), np.float32)}
    check_error(UsageError, lambda: TaskDropout(Rows(), Flat(), 0, Ranks(1))(0, batch), "[rows]", "'drop'", "30 places for 6 examples")
