"""`duoln.save`, `duoln.load` and `duoln.load_arrays`: a tree of parameters in one file, read again as it was, or refused in words."""

import json
import os
import zipfile

import numpy as np
import pytest
import safetensors.numpy

import duoln
from duoln import nn, ops, tree
from duoln.errors import CheckpointError, DtypeError, GradientError, ShapeError, UsageError
from duoln.runs import checkpoint, tensor_file
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
    assert _same(TREES[name], duoln.load_arrays(str(tmp_path / "params.safetensors")))
    assert [p.name for p in tmp_path.iterdir()] == ["params.safetensors"]


def test_tensors_of_every_backend_and_the_model_goes_on(be, tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4))
    params, x = duoln.to_tensors(model.init(0), be), duoln.tensor(np.ones((5, 1, 2), np.float32), be)
    duoln.save(tmp_path / "a", params)
    again = duoln.load(tmp_path / "a", be)
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
    assert duoln.load_arrays(tmp_path / "a")["x"] == [1.0]


def _foreign(form=None, **arrays):
    arrays = arrays or {"x": np.ones(1)}
    notes = {} if form is None else {"duoln": tensor_file.sealed(json.dumps({"format": 1, "parameters": form}), arrays)}
    return safetensors.numpy.save(arrays, notes)


@pytest.mark.parametrize(("content", "words"), [
    (b"", ["parameters"]), (b"\0" * 100, ["parameters"]), (_foreign(), ["another program", "duoln.load_pytorch"]),
    (_foreign({"dict": {"y": None}}), ["'x'"]), (_foreign({"dict": {"x": None, "y": None}}), ["'y'", "missing"]),
    (_foreign({"set": []}), ["duoln.save"]), (_foreign(7), ["duoln.save"]), (_foreign({"list": {}}), ["duoln.save"]),
    (_foreign(json.loads('{"list": [' * 400 + "]}" * 400)), ["duoln.save"])])
def test_what_cannot_be_read(content, words, tmp_path):
    (tmp_path / "a").write_bytes(content)
    check_error(CheckpointError, lambda: duoln.load_arrays(tmp_path / "a"), str(tmp_path / "a"), *words)


def test_other_files(tmp_path):
    check_error(CheckpointError, lambda: duoln.load_arrays(tmp_path / "a"), str(tmp_path / "a"), "nothing there")
    check_error(CheckpointError, lambda: duoln.load_arrays(tmp_path), str(tmp_path), "Is a directory")
    path = checkpoint.save(tmp_path, 1, {"x": np.ones(1)}, {})
    check_error(CheckpointError, lambda: duoln.load_arrays(path), "duoln.save", "a checkpoint of a run")
    duoln.save(path, {"x": np.ones(1)})
    check_error(CheckpointError, lambda: checkpoint.load(path), "not a duoln checkpoint")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_come_back(dtype, be, tmp_path):
    tensors = {"odd": duoln.tensor([[0.1, -2.5, float("nan")], [float("inf"), -0.0, 1e-7]], be, dtype=dtype), "none": duoln.tensor(np.ones((0, 3)), be, dtype=dtype),
               "number": duoln.tensor(1.5, be, dtype=dtype), "wide": [duoln.tensor([1.0, 0.1], be)], "bits": np.arange(3, dtype=np.uint16)}
    duoln.save(tmp_path / "a", tensors)
    loaded = duoln.load_arrays(tmp_path / "a")
    duoln.save(tmp_path / "b", loaded)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() and loaded["bits"].dtype == np.uint16
    again = duoln.to_tensors({key: loaded[key] for key in tensors if key != "bits"}, be)
    for before, after in zip(tree.leaves({key: tensors[key] for key in again}), tree.leaves(again), strict=True):
        assert (before.dtype, before.shape, before.backend) == (after.dtype, after.shape, after.backend)
        np.testing.assert_array_equal(before.numpy(), after.numpy())


@pytest.mark.peers
def test_pytorch_reads_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    import safetensors.torch

    duoln.save(tmp_path / "a", {"w": duoln.tensor([[1.0, 0.1]], "numpy", dtype="bfloat16"), "x": duoln.tensor([2.0], "numpy")})
    read = safetensors.torch.load_file(tmp_path / "a")
    assert torch.equal(read["w"], torch.tensor([[1.0, 0.1]]).bfloat16()) and torch.equal(read["x"], torch.tensor([2.0]))


@pytest.mark.long
def test_many_arrays_and_one_too_many(tmp_path, monkeypatch):
    params = {f"layer {k} of a model with names of some length": np.full(2, k, np.float32) for k in range(10_000)}
    duoln.save(tmp_path / "a", params)
    assert _same(params, duoln.load_arrays(tmp_path / "a"))
    path = checkpoint.save(tmp_path, 1, {"params": params}, {})
    assert len(checkpoint.load(path).arrays) == 10_000
    size = int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")
    monkeypatch.setattr(tensor_file, "_MAX_HEADER", size)
    assert len(duoln.load_arrays(tmp_path / "a")) == 10_000
    monkeypatch.setattr(tensor_file, "_MAX_HEADER", size - 1)
    check_error(ShapeError, lambda: duoln.save(tmp_path / "b", params), "[save]", "10000 arrays")
    check_error(CheckpointError, lambda: duoln.load_arrays(tmp_path / "a"), f"at most {size - 1} bytes")
    monkeypatch.setattr(tensor_file, "_MAX_HEADER", size // 2)
    check_error(ShapeError, lambda: checkpoint.save(tmp_path, 2, {"params": params}, {}), "[checkpoint]", "10000 arrays")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", path.name]


NAMES = {"reserved": ({"__metadata__": np.ones(1)}, DtypeError, "'__metadata__'"), "half a character": ({"\ud800": np.ones(1)}, DtypeError, "ud800"),
         "one path": ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, ShapeError, "'a.b' twice"), "lists and names": ({"a": [np.ones(1)], "a.0": np.ones(1)}, ShapeError, "'a.0' twice")}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_file_cannot_have(name, tmp_path):
    arrays, kind, words = NAMES[name]
    check_error(kind, lambda: duoln.save(tmp_path / "a", arrays), "[save]", words)
    check_error(kind, lambda: checkpoint.save(tmp_path / "run", 1, arrays, {}), "[checkpoint]", words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["not_finite"], ["not_finite", "x"], ["dict", "list"], ["", "a\0b", "ä", "a b"]])
def test_names_that_a_file_can_have(names, tmp_path):
    params = {name: {below: np.ones(1) for below in [*names, "not_finite"]} for name in names}
    duoln.save(tmp_path / "a", params)
    assert _same(params, duoln.load_arrays(tmp_path / "a"))


@pytest.mark.parametrize("suffix", [".npz", ".NPY", ".pt", ".pth", ".bin", ".pkl", ".h5"])
def test_a_name_of_another_format_is_refused(suffix, tmp_path):
    check_error(UsageError, lambda: duoln.save(tmp_path / f"p{suffix}", {"w": np.ones(1)}), "[save] path", "'p.safetensors'", f"p{suffix}")
    check_error(UsageError, lambda: duoln.save_pytorch(tmp_path / f"p{suffix}", nn.Linear(1, 1), nn.Linear(1, 1).init(0)), "[save_pytorch] path")
    assert list(tmp_path.iterdir()) == []
    duoln.save(tmp_path / "model.v1.2", {"w": np.ones(1)})
    assert duoln.load_arrays(tmp_path / "model.v1.2") == {"w": [1.0]}


def test_files_of_numpy_and_pytorch_are_named(tmp_path):
    np.savez(tmp_path / "p.npz", w=np.ones(1))
    check_error(CheckpointError, lambda: duoln.load_arrays(tmp_path / "p.npz"), "duoln.save('p.safetensors', dict(numpy.load('p.npz')))")
    with zipfile.ZipFile(tmp_path / "new", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}.")
    for content in ((tmp_path / "new").read_bytes(), b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", b"\x80\x04\x95\x1b" + b"\0" * 7 + b"}."):
        (tmp_path / "p.pt").write_bytes(content)
        for read in (lambda: duoln.load_arrays(tmp_path / "p.pt"), lambda: duoln.load_pytorch(tmp_path / "p.pt", nn.Linear(3, 2)), lambda: checkpoint.load(tmp_path / "p.pt")):
            check_error(CheckpointError, read, "a pickle of torch.save", "safetensors.torch.save_file(torch.load('p.pt', weights_only=True), 'p.safetensors')")


def test_masked_arrays_are_refused(tmp_path):
    check_error(DtypeError, lambda: duoln.save(tmp_path / "a", {"w": np.ma.array([1.0, 2.0], mask=[0, 1])}), "[save]", "mask", "filled")
    params = {**nn.LayerNorm(2).init(0), "bias": np.ma.array(np.ones(2, np.float32))}
    check_error(DtypeError, lambda: duoln.save_pytorch(tmp_path / "a", nn.LayerNorm(2), params), "[save_pytorch]", "mask", "filled")
