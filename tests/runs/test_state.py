"""`save_state` and `load_state`: the checkpoints of a training loop of one's own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE, TESTS

import duoln
from duoln import optim
from duoln.errors import CheckpointError, CheckpointWarning, DtypeError, ShapeError, UsageError
from duoln.randomness import Stream
from duoln.testing import check_error

LOOP = [sys.executable, str(Path(__file__).with_name("state_loop.py"))]
UPDATES = 40
LEAVES = {"none": None, "flag": True, "count": 3, "best": float("inf"), "name": "a", "list": [1, (2.5, {"x": np.float64([1, 2])})], "empty": {}}


def test_everything_comes_back(be, tmp_path):
    stream = Stream(3, "noise")
    stream.uniform(7)
    params = duoln.to_tensors({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "layers": [{}, {"b": np.float32([1])}]}, be)
    tensors = {"params": params, "slots": optim.Adam(0.1).init(params), "narrow": duoln.tensor([1.5, -2], be, "bfloat16"), "mask": duoln.tensor([True, False], be)}
    path = duoln.save_state(tmp_path / "a" / "b", 12, noise=stream, **tensors, **LEAVES)
    assert path.parent == tmp_path / "a" / "b"
    state = duoln.load_state(tmp_path / "a" / "b", be)
    assert state.keys() == {"update", "noise", *tensors, *LEAVES} and state["update"] == 12
    for name, tree in tensors.items():
        def same(saved, loaded):
            assert loaded.backend is be and loaded.dtype == saved.dtype and loaded.shape == saved.shape
            np.testing.assert_array_equal(loaded.astype("float32").numpy(), saved.astype("float32").numpy())

        duoln.tree.map(same, tree, state[name])
    assert state["params"]["layers"][0] == {}
    np.testing.assert_array_equal(state["noise"].uniform(5), stream.uniform(5))
    list_of = state.pop("list")
    assert {name: state[name] for name in LEAVES if name != "list"} == {name: leaf for name, leaf in LEAVES.items() if name != "list"}
    assert list_of[0] == 1 and isinstance(list_of[1], tuple) and list_of[1][1]["x"].dtype == np.float64


def test_at_the_start_there_is_none(tmp_path):
    assert duoln.load_state(tmp_path) is None and duoln.load_state(tmp_path / "not" / "there") is None


def test_the_two_newest_are_kept(tmp_path):
    for update in range(5):
        duoln.save_state(tmp_path, update, x=np.float32([update]))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["update-000000003.safetensors", "update-000000004.safetensors"]
    assert duoln.load_state(tmp_path)["x"] == [4]


def test_a_damaged_newest_one_is_passed_over_with_a_warning(tmp_path):
    for update in (3, 6):
        path = duoln.save_state(tmp_path, update, x=np.arange(100))
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="update-000000006.*checksum"):
        state = duoln.load_state(tmp_path)
    assert state["update"] == 3
    duoln.save_state(tmp_path, 4, x=np.arange(100))  # the loop goes on from there
    (tmp_path / "update-000000003.safetensors").write_bytes(b"")
    (tmp_path / "update-000000004.safetensors").unlink()
    check_error(CheckpointError, lambda: duoln.load_state(tmp_path), "no checkpoint can be read", "update-000000003", "update-000000006")


def test_wrong_calls(tmp_path, numpy_backend):
    x = np.ones(3)
    check_error(UsageError, lambda: duoln.save_state(tmp_path, 1), "[save_state]", "params=params")
    check_error(DtypeError, lambda: duoln.save_state(tmp_path, 1.5, x=x), "update")
    check_error(ShapeError, lambda: duoln.save_state(tmp_path, -1, x=x), "update")
    check_error(DtypeError, lambda: duoln.save_state(tmp_path, 1, x=object()), "[save_state]", "streams")
    check_error(DtypeError, lambda: duoln.save_state(tmp_path, 1, x={3: x}), "texts as names")
    check_error(DtypeError, lambda: duoln.save_state(tmp_path, 1, x=np.array(["a"])), "")
    check_error(TypeError, lambda: duoln.save_state(tmp_path, params=x), "update")
    assert list(tmp_path.iterdir()) == []
    duoln.save_state(tmp_path, 10, x=x)
    check_error(CheckpointError, lambda: duoln.save_state(tmp_path, 1, x=x), "updates after 10", "found 1", "load_state")
    assert duoln.load_state(tmp_path)["update"] == 10


def test_what_a_kill_left_is_removed(tmp_path):
    left = tmp_path / "update-000000003.safetensors.0123abcd.part"
    left.write_bytes(b"half")
    duoln.save_state(tmp_path, 4, x=np.ones(3))
    assert not left.exists()


def test_other_paths(tmp_path):
    path = duoln.save_state(tmp_path / "states", 1, x=np.ones(3))
    check_error(CheckpointError, lambda: duoln.load_state(path), "expected a folder")
    check_error(CheckpointError, lambda: duoln.load(path), "duoln.load_state(folder)")
    check_error(DtypeError, lambda: duoln.save({"x": np.ones(3)}, "a.safetensors"), "[save] path", "found dict")
    for call in (duoln.load, duoln.load_state, lambda path: duoln.load_pytorch(path, None), lambda path: duoln.save_state(path, 1, x=1)):
        check_error(DtypeError, lambda call=call: call({"x": 1}), "path: expected the name of a file", "found dict")


def test_checkpoints_of_a_run_are_none_of_a_loop(tmp_path):
    duoln.tasks.train("mnist", variant="ln", preset="smoke", backend="numpy", rows=200, out=tmp_path)
    [folder] = tmp_path.rglob("checkpoints")
    check_error(CheckpointError, lambda: duoln.load_state(folder), "a state of duoln.save_state")


def _environment():
    return {**os.environ, "PYTHONPATH": str(TESTS.parent), "OPENBLAS_NUM_THREADS": "1"}


def test_a_loop_that_is_killed_at_any_moment_ends_to_the_bit(tmp_path):
    def run(folder):
        return subprocess.run([*LOOP, str(folder), str(UPDATES)], env=_environment(), capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.splitlines()

    whole = run(tmp_path / "whole")
    assert len(whole) == UPDATES + 1
    for killed_after in (1, 17, 33):
        process = subprocess.Popen([*LOOP, str(tmp_path / "killed"), str(UPDATES)], env=_environment(), stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if int(line.split()[0]) >= killed_after:
                process.kill()
                break
        process.communicate()
    resumed = run(tmp_path / "killed")
    assert len(resumed) < len(whole) and resumed[-1] == whole[-1]
