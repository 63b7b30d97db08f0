"""Settings that a task has got since a run was written, or has lost."""

import json
import warnings
from dataclasses import make_dataclass

import pytest
from small_runs import Line, fit_into

from duoln.errors import CheckpointError, CheckpointWarning
from duoln.runs import checkpoint
from duoln.runs.settings import read_config
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer


def _task(*fields):
    """The task, with further settings."""
    task = Line()
    task.config = make_dataclass("LineConfig", fields, bases=(Line.config,), frozen=True, kw_only=True)
    return task


def _trainer(task, be, epochs, **more):
    cfg = make_config(task, "plain", None, {"epochs": epochs, **more})
    return Trainer(task, "plain", cfg, task.data(cfg), be)


def _written(tmp_path, be):
    fit_into(_trainer(Line(), be, 2), tmp_path, be)
    return tmp_path


def test_a_setting_that_is_new_has_its_default_with_a_remark(tmp_path, numpy_backend):
    folder, task = _written(tmp_path, numpy_backend), _task(("depth", int, 3), ("tags", str, "a"))
    with pytest.warns(CheckpointWarning, match="before line had all its settings: depth is 3, tags is 'a', by default"):
        variant, config = read_config(task, folder)
    assert variant == "plain" and config.depth == 3 and config.epochs == 2


def test_a_run_goes_on_with_it_and_not_with_another_value(tmp_path, numpy_backend):
    folder = _written(tmp_path, numpy_backend)
    saved, _ = checkpoint.newest(folder / "checkpoints")
    with pytest.warns(CheckpointWarning, match="depth is 3"):
        trainer = _trainer(_task(("depth", int, 3)), numpy_backend, 3)
        trainer.resume(saved)
    assert trainer.update == saved.update
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        check_error(CheckpointError, lambda: _trainer(_task(("depth", int, 3)), numpy_backend, 3, depth=4).resume(saved), "expected depth 4, found 3")


def test_a_setting_without_a_default_is_asked_for(tmp_path, numpy_backend):
    folder = _written(tmp_path, numpy_backend)
    check_error(CheckpointError, lambda: read_config(_task(("depth", int)), folder), "'depth' is missing", "give it a default in LineConfig")


def test_a_setting_that_is_gone_is_named(tmp_path, numpy_backend):
    folder = _written(tmp_path, numpy_backend)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "config": {**content["config"], "gone": 1}}))
    check_error(CheckpointError, lambda: read_config(Line(), folder), "'gone' is unknown", "another version of line")
