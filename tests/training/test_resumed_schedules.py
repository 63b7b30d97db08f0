"""A schedule that ends with the training is another one where a resumed run is longer: every table says so."""

import json

import pytest
from small_runs import Line, fit_into

import duoln
from duoln import optim
from duoln.errors import TaskError
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer


class Cosine(Line):
    """Its rate falls to 0 at the end of the training."""

    name = "cosine"

    def optimizer(self, cfg):
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


def test_a_rate_that_does_not_depend_on_the_length_is_the_same(numpy_backend, tmp_path):
    _trained(Line(), numpy_backend, tmp_path, 2)
    assert "changes" not in _trained(Line(), numpy_backend, tmp_path, 4, resume=True)


@pytest.mark.parametrize("metric", ["valid_acuracy", "train_mse"])
def test_patience_by_a_metric_that_is_not_there_is_refused(metric, numpy_backend):
    class Misspelt(Line):
        selection = (metric, "lowest")

    check_error(TaskError, lambda: duoln.train(Misspelt(), "plain", backend=numpy_backend, patience=2),
                "[line] selection", "valid_mse", f"found '{metric}'")
