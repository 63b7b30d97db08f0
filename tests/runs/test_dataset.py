"""The dataset of a run is read from its log, also from a log of an earlier version."""

import json

import pytest

from duoln.errors import DataFormatError
from duoln.runs.curves import read_curves
from duoln.runs.curves_csv import write_csv
from duoln.runs.dataset import read_dataset
from duoln.runs.series import series_of
from duoln.tasks import Task
from duoln.tasks.values import Dataset
from duoln.testing.closeness import check_error


@pytest.mark.parametrize("key", ["provenance", "rung"])
def test_both_keys_are_read(key):
    assert read_dataset("log.jsonl", {"name": "CIFAR-10", key: "substitute"}) == Dataset("CIFAR-10", "substitute")


@pytest.mark.parametrize("value", [
    None, [], {"name": "x"}, {"rung": "original"}, {"name": "x", "rung": 1}, {"name": 1, "provenance": "original"},
    {"name": "x", "rung": "original", "provenance": "synthetic"}, {"name": "x", "rung": "original", "more": "y"}])
def test_what_is_no_dataset_is_refused(value):
    check_error(DataFormatError, lambda: read_dataset("log.jsonl", value), "log.jsonl", "name, provenance as dataset")


@pytest.mark.parametrize("key", ["provenance", "rung"])
def test_runs_of_both_versions_are_reported(tmp_path, key):
    run = tmp_path / "ln"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"task": "t", "variant": "ln", "config": {"batch_size": 4}}))
    entries = [{"event": "start", "dataset": {"name": "digits", key: "original"}},
               {"event": "evaluation", "step": 3, "epoch": 1.0, "wall_s": 0.5, "error": 0.25}]
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    [curve] = read_curves([run])
    assert curve.dataset == Dataset("digits", "original")
    header, row = write_csv(series_of(Task(), [curve]), tmp_path / "curves.csv").read_text().splitlines()
    assert header.split(",")[:5] == ["run", "variant", "batch_size", "dataset", "provenance"]
    assert row.split(",")[:5] == ["ln", "ln", "4", "digits", "original"]
