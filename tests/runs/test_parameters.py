"""`duoln.save` and `duoln.load`: a tree of parameters in one file, read again as it was, or refused in words."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

import duoln
from duoln import nn, ops, tree
from duoln.errors import CheckpointError, DtypeError, GradientError, ShapeError
from duoln.runs import checkpoint
from duoln.testing import check_error

TREES = {
    "a model's": nn.Sequential(nn.Linear(2, 3), ops.tanh, nn.LayerNorm(3)).init(0),
    "lists and tuples": {"layers": [{"w": np.ones((2, 3), np.float32)}, {"w": np.zeros(3, np.float32)}], "pair": (np.float32(2), np.ones(1))},
    "order of names": {"b": np.ones(1, np.float32), "a": {"z": np.zeros(2, np.int32), "c": np.array([True, False])}},
    "empty branches": {"none": {}, "list": [], "x": np.ones((0, 3), np.float32)}, "a list": [np.ones(2), np.zeros(2)],
    "names with dots": {"a.b": np.ones(1), "a": {"c": np.ones(2)}}, "one array": np.arange(3),
    "a part of an array": {"x": np.arange(6.0).reshape(2, 3).T[::2]},
}


def _same(a, b):
    assert type(a) is type(b) or (isinstance(a, np.generic) and isinstance(b, np.ndarray))
    if isinstance(a, dict):
        assert list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b) and all(map(_same, a, b))
    else:
        assert a.dtype == b.dtype and np.shape(a) == b.shape and np.array_equal(a, b)
    return True


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_read_as_it_was(name, tmp_path):
    duoln.save(tmp_path / "params.safetensors", TREES[name])
    assert _same(TREES[name], duoln.load(str(tmp_path / "params.safetensors")))
    assert [p.name for p in tmp_path.iterdir()] == ["params.safetensors"]


def test_tensors_of_every_backend_and_the_model_goes_on(be, tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4))
    params, x = duoln.to_tensors(model.init(0), be), duoln.tensor(np.ones((5, 1, 2), np.float32), be)
    duoln.save(tmp_path / "a", params)
    again = duoln.to_tensors(duoln.load(tmp_path / "a"), be)
    assert np.array_equal(model(params, x)[0].numpy(), model(again, x)[0].numpy())
    assert sorted(safetensors.numpy.load_file(tmp_path / "a")) == sorted(path for path, _ in tree.items(params))


def test_what_cannot_be_written(tmp_path, be):
    def save(params, path=tmp_path / "a"):
        return lambda: duoln.save(path, params)

    check_error(DtypeError, save({"w": [1.0, "x"]}), "[save] 'w.0'", "a tensor or an array", "1.0 (float)")
    check_error(DtypeError, save({"w": np.array(["x"])}), "[save] 'w'", "numbers", "<U1")
    check_error(DtypeError, save({1: np.ones(1)}), "[save]", "texts as names", "1 (int)")
    check_error(DtypeError, save(nn.Linear(2, 3)), "[save]", "Linear", "model.init(0)")
    check_error(ShapeError, save({"a.b": np.ones(1), "a": {"b": np.ones(1)}}), "[save]", "'a.b'", "twice")
    check_error(CheckpointError, save({"a": np.ones(1)}, tmp_path / "none" / "a"), "none", "cannot be written")
    check_error(GradientError, lambda: duoln.value_and_grad(lambda x: save({"x": x})())(duoln.tensor(1.0, be)), "stop_gradient")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_could_not_be_read_again_is_refused(tmp_path):
    deep = np.ones(1)
    for _ in range(40):
        deep = [deep]
    check_error(ShapeError, lambda: duoln.save(tmp_path / "a", deep), "[save]", "nested too deeply")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    duoln.save(tmp_path / "a", {"x": np.ones(1)})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(os, "rename", fail)
    check_error(CheckpointError, lambda: duoln.save(tmp_path / "a", {"x": np.zeros(1)}), "cannot be written")
    assert duoln.load(tmp_path / "a")["x"] == [1.0]


def _foreign(form=None, **arrays):
    notes = {} if form is None else {"duoln": json.dumps({"format": 1, "parameters": form})}
    return safetensors.numpy.save(arrays or {"x": np.ones(1)}, notes)


@pytest.mark.parametrize(("content", "words"), [
    (b"", ["parameters"]), (b"\0" * 100, ["parameters"]), (_foreign(), ["duoln.save", "'duoln'"]),
    (_foreign({"dict": {"y": None}}), ["'x'"]), (_foreign({"dict": {"x": None, "y": None}}), ["'y'", "missing"]),
    (_foreign({"set": []}), ["duoln.save"]), (_foreign(7), ["duoln.save"]), (_foreign({"list": {}}), ["duoln.save"]),
    (_foreign(json.loads('{"list": [' * 400 + "]}" * 400)), ["duoln.save"])])
def test_what_cannot_be_read(content, words, tmp_path):
    (tmp_path / "a").write_bytes(content)
    check_error(CheckpointError, lambda: duoln.load(tmp_path / "a"), str(tmp_path / "a"), *words)


def test_other_files(tmp_path):
    check_error(CheckpointError, lambda: duoln.load(tmp_path / "a"), str(tmp_path / "a"), "nothing there")
    check_error(CheckpointError, lambda: duoln.load(tmp_path), str(tmp_path), "Is a directory")
    path = checkpoint.save(tmp_path, 1, {"x": np.ones(1)}, {})
    check_error(CheckpointError, lambda: duoln.load(path), "duoln.save", "a checkpoint of a run")
    duoln.save(path, {"x": np.ones(1)})
    check_error(CheckpointError, lambda: checkpoint.load(path), "not a duoln checkpoint")
