"""A run as its files describe it: the dataset is read from its log."""

import json

import pytest

from duoln.errors import DataFormatError
from duoln.runs.curve import read_dataset
from duoln.runs.curves import read_curves
from duoln.runs.series import series_of, write_csv
from duoln.tasks import Task
from duoln.tasks.values import Dataset
from duoln.testing.closeness import check_error


@pytest.mark.parametrize("value", [
    None, [], {"name": "x"}, {"provenance": "original"}, {"name": "x", "provenance": 1}, {"name": 1, "provenance": "original"},
    {"name": "x", "provenance": "original", "more": "y"}])
def test_what_is_no_dataset_is_refused(value):
    check_error(DataFormatError, lambda: read_dataset("log.jsonl", value), "log.jsonl", "name, provenance as dataset")


def test_the_table_of_curves_names_the_dataset(tmp_path):
    run = tmp_path / "ln"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"task": "t", "variant": "ln", "precision": "float32", "config": {"batch_size": 4}}))
    entries = [{"event": "start", "dataset": {"name": "digits", "provenance": "original"}},
               {"event": "evaluation", "step": 3, "epoch": 1.0, "wall_s": 0.5, "error": 0.25}]
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    [curve] = read_curves([run])
    assert curve.dataset == Dataset("digits", "original")
    header, row = write_csv(series_of(Task(), [curve]), tmp_path / "curves.csv").read_text().splitlines()
    assert header.split(",")[:5] == ["run", "variant", "batch_size", "dataset", "provenance"]
    assert row.split(",")[:5] == ["ln", "ln", "4", "digits", "original"]
