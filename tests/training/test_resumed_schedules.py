"""A schedule that ends with the training is another one where a resumed run is longer: every table says so."""

import json
import warnings

import pytest
from small_runs import Line, fit_into

import duoln
from duoln import optim
from duoln.errors import ScheduleWarning, TaskError
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer


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
