"""What a run's bits depend on: each part is seen, and nothing else makes a difference."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from small_runs import Line

from duoln.core.op import composed_only
from duoln.errors import CheckpointError
from duoln.runs.identity import batches_of, check_unchanged, differences, fingerprint, identity_of
from duoln.tasks import Dataset, make_config
from duoln.testing import check_error


@pytest.fixture
def splits():
    task = Line()
    return task.data(make_config(task, "plain", None, {}))


def _changed(splits, **parts):
    return _both(dataclasses.replace(splits, **parts))


def _both(splits):
    return fingerprint(splits), batches_of(splits)


def test_equal_data_have_one_fingerprint(splits):
    again = Line().data(make_config(Line(), "plain", None, {"epochs": 9, "learning_rate": 0.5}))
    assert _both(splits) == _both(again)


def test_the_seed_decides_the_batches_and_not_the_data(splits):
    second = Line().data(make_config(Line(), "plain", None, {"seed": 1}))
    assert fingerprint(splits) == fingerprint(second) and batches_of(splits) != batches_of(second)
    with_train = [dataclasses.replace(each, evaluation={**each.evaluation, "train": each.train(0)}) for each in (splits, second)]
    assert len({*map(fingerprint, with_train), fingerprint(splits)}) == 1


def test_other_data_have_another_fingerprint(splits):
    held_out = splits.evaluation["valid"]
    others = [
        _changed(splits, dataset=Dataset("a line", "original")),
        _changed(splits, steps_per_epoch=splits.steps_per_epoch - 1),
        _changed(splits, train=lambda step: splits.train(step + 1)),
        _changed(splits, train=lambda step: {**splits.train(step), "y": -splits.train(step)["y"]}),
        _changed(splits, evaluation={"test": held_out}),
        _changed(splits, evaluation={"valid": {**held_out, "y": held_out["y"] + np.float32(1e-6)}}),
        _changed(splits, evaluation={"valid": {**held_out, "y": held_out["y"].astype(np.float64)}}),
        _changed(splits, evaluation={"valid": {**held_out, "y": held_out["y"].T}})]
    assert len({_both(splits), *others}) == len(others) + 1


def test_of_a_large_array_some_rows_are_seen(splits):
    large = np.zeros((300_000, 7), np.uint8)
    before = _changed(splits, evaluation={"test": {"x": large}})
    large[0] = 1
    assert _changed(splits, evaluation={"test": {"x": large}}) != before
    assert _changed(splits, evaluation={"test": {"x": large[:-1]}}) != before


def test_rules_data_and_ranks_are_parts(numpy_backend, splits):
    task = Line()
    one = identity_of(numpy_backend, task, splits)
    assert identity_of(numpy_backend, task, splits) == one
    with composed_only():
        second = identity_of(numpy_backend, task, dataclasses.replace(splits, steps_per_epoch=3), ranks=2)
    assert [change.key for change in differences(7, one, second)] == ["rules", "data", "ranks"]


def test_differences_are_told_with_both_values():
    [threads, device] = changes = differences(3, {"blas_threads": "2", "data": "a"}, {"data": "a", "device": "x"})
    assert str(threads) == "blas_threads was 2 up to update 3, and is none since"
    assert (device.was, device.now) == ("none", "x")
    check_error(CheckpointError, lambda: check_unchanged(Path("update-3"), changes), "update-3: expected blas_threads 2, found none",
                "expected device none, found x", "Set OPENBLAS_NUM_THREADS=2, or go on with --resume anyway")
