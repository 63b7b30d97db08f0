"""Checkpoints: each is complete or absent, the newest readable one is used, and one of another model is refused."""

import json
import os
import stat

import numpy as np

import duoln
from duoln.errors import CheckpointError
from duoln.runs import checkpoint
from duoln.runs.tensor_file import sealed
from duoln.system import filesystem
from duoln.testing import check_error

ARRAYS = {"params": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [np.zeros(0, np.float32)]},
          "step": np.array(3, np.int32)}


def test_round_trip(tmp_path):
    path = checkpoint.save(tmp_path / "new", 7, ARRAYS, {"task": "t", "text": "é"})
    loaded = checkpoint.load(path)
    assert loaded.update == 7 and loaded.notes["task"] == "t" and loaded.notes["text"] == "é"
    assert set(loaded.arrays) == {"params.b.0", "params.w", "step"}
    np.testing.assert_array_equal(loaded.arrays["params.w"], ARRAYS["params"]["w"])
    assert loaded.arrays["step"].shape == () and loaded.arrays["step"].dtype == np.int32


def test_the_last_two_are_kept(tmp_path):
    for step in (1, 2, 30, 4):
        checkpoint.save(tmp_path, step, ARRAYS, {})
    assert [p.name for p in checkpoint.list_paths(tmp_path)] == ["update-000000004.safetensors", "update-000000030.safetensors"]


def _save(folder, step, best):
    return checkpoint.save(folder, step, ARRAYS, {"best": 0.5, "best_update": best})


def _steps(folder):
    return [int(p.stem[-1]) for p in checkpoint.list_paths(folder)]


def test_the_best_is_kept_as_long_as_a_checkpoint_that_names_it(tmp_path):
    for step, best in ((1, None), (2, 2), (3, 2), (4, 2), (5, 2)):
        _save(tmp_path, step, best)
    assert _steps(tmp_path) == [2, 4, 5] and {p.suffix for p in tmp_path.iterdir()} == {".safetensors"}
    assert checkpoint.load_best(checkpoint.newest(tmp_path)[0]).update == 2
    _save(tmp_path, 6, 6)
    assert _steps(tmp_path) == [2, 5, 6]  # if 6 were damaged, 5 would need 2
    _save(tmp_path, 7, 6)
    assert _steps(tmp_path) == [6, 7]


def test_a_best_that_is_gone_is_an_error(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path, step, 1)
    (tmp_path / "update-000000001.safetensors").unlink()
    saved, _ = checkpoint.newest(tmp_path)
    check_error(CheckpointError, lambda: checkpoint.load_best(saved), "update-000000003", "update-000000001", "--set patience=0")


def test_a_damaged_checkpoint_takes_no_ones_place(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path, step, None)
    (tmp_path / "update-000000004.safetensors").write_bytes(b"junk")
    checkpoint.remove_old(tmp_path)
    assert _steps(tmp_path) == [2, 3, 4]
    _save(tmp_path, 5, None)
    assert _steps(tmp_path) == [3, 4, 5]
    _save(tmp_path, 6, None)
    assert _steps(tmp_path) == [5, 6]


def test_only_our_own_parts_are_removed(tmp_path):
    ours = ["update-000000003.safetensors.01234567.part", "config.json.89abcdef.part", "curves.csv.01234567.part"]
    theirs = ["film.part", "update-3.txt.part", "notes.json.01234567.part", "config.json.part", "config.json.0123456.part"]
    for name in ours + theirs:
        (tmp_path / name).write_text("x")
    assert sorted(p.name for p in checkpoint.remove_parts(tmp_path)) == sorted(ours)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(theirs)
    assert checkpoint.remove_parts(tmp_path / "nothing") == []


def test_the_newest_good_one_is_found(tmp_path):
    old, new = checkpoint.save(tmp_path, 1, ARRAYS, {}), checkpoint.save(tmp_path, 2, ARRAYS, {})
    assert checkpoint.newest(tmp_path)[0].update == 2
    content = new.read_bytes()
    for damaged in (content[:-5], b"", content[:4], b"\xff" * 100, content + b"x"):
        new.write_bytes(damaged)
        newest, refused = checkpoint.newest(tmp_path)
        assert newest.path == old and len(refused) == 1 and new.name in refused[0]
    assert checkpoint.newest(tmp_path / "nothing") == (None, [])


def test_files_that_are_not_ours_are_refused(tmp_path):
    import safetensors.numpy

    path = tmp_path / "update-000000001.safetensors"
    safetensors.numpy.save_file({"w": np.zeros(2, np.float32)}, path)
    check_error(CheckpointError, lambda: checkpoint.load(path), "expected a file of duoln")
    w = {"w": np.zeros(2, np.float32)}
    safetensors.numpy.save_file(w, path, {"duoln": sealed('{"format": 99, "update": 1}', w)})
    check_error(CheckpointError, lambda: checkpoint.load(path), "format 1", "99")
    check_error(CheckpointError, lambda: checkpoint.load(tmp_path / "missing"), "missing")


def test_links_and_permissions_are_respected(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    before = os.umask(0o022)
    try:
        filesystem.write_atomically(tmp_path / "link", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "file").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "real" / "file").stat().st_mode) == 0o644


def test_restore_refuses_another_model(numpy_backend):
    like = duoln.to_tensors({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}, numpy_backend)
    good = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    assert checkpoint.restore(like, good)["w"].sum() == 6
    check_error(CheckpointError, lambda: checkpoint.restore(like, {"w": good["w"]}), "'b'", "missing")
    check_error(CheckpointError, lambda: checkpoint.restore(like, {**good, "c": good["b"]}), "'c'", "unexpected")
    check_error(CheckpointError, lambda: checkpoint.restore(like, {**good, "b": np.ones(4, np.float32)}), "(3,)", "(4,)")
    check_error(CheckpointError, lambda: checkpoint.restore(like, {**good, "b": np.ones(3)}), "float32", "float64")


def test_notes_are_json_that_every_reader_takes(tmp_path):
    def no_json(word):
        raise AssertionError(f"{word} is no JSON")

    notes = {"evaluated": {"loss": float("inf"), "error": 0.5, "worst": float("nan")}, "text": "é"}
    path = checkpoint.save(tmp_path, 3, ARRAYS, notes)
    header = path.read_bytes()[8:8 + int.from_bytes(path.read_bytes()[:8], "little")]
    json.loads(json.loads(header)["__metadata__"]["duoln"], parse_constant=no_json)
    read = checkpoint.load(path).notes
    assert repr(read["evaluated"]) == repr(notes["evaluated"]) and read["text"] == "é"


def test_every_flipped_bit_is_seen(tmp_path):
    """Or changes nothing: the header's own padding, and names that a reader does not use."""
    path = checkpoint.save(tmp_path, 7, ARRAYS, {"task": "t", "best": 0.25, "best_update": 7})
    good, saved = path.read_bytes(), checkpoint.load(path)
    unseen = []
    for place in range(len(good)):
        for bit in (0, 3, 6):
            path.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1:])
            try:
                loaded = checkpoint.load(path)
            except CheckpointError:
                continue
            same = loaded.notes == saved.notes and loaded.arrays.keys() == saved.arrays.keys() and all(
                x.tobytes() == saved.arrays[name].tobytes() and x.shape == saved.arrays[name].shape and x.dtype == saved.arrays[name].dtype
                for name, x in loaded.arrays.items())
            unseen += [] if same else [(place, bit)]
    assert unseen == []


def test_a_flipped_bit_of_a_weight_is_told(tmp_path):
    path = checkpoint.save(tmp_path, 7, ARRAYS, {})
    content = bytearray(path.read_bytes())
    content[content.index(ARRAYS["params"]["w"].tobytes())] ^= 1
    path.write_bytes(content)
    check_error(CheckpointError, lambda: checkpoint.load(path), "update-000000007", "expected the arrays that were written, with checksum",
                "damaged on the disk")
    saved, refused = checkpoint.newest(tmp_path)
    assert saved is None and len(refused) == 1


def test_name_and_inside_agree_on_the_update(tmp_path):
    path = checkpoint.save(tmp_path, 16, ARRAYS, {})
    path.rename(tmp_path / "update-000000099.safetensors")
    checkpoint.save(tmp_path, 8, ARRAYS, {})
    saved, [refused] = checkpoint.newest(tmp_path)
    assert saved.update == 8 and "update-000000099.safetensors: expected update 99, as its name says, found 16" in refused


def test_a_copy_under_another_name_of_the_same_update_takes_no_ones_place(tmp_path):
    checkpoint.save(tmp_path, 1, ARRAYS, {})
    path = checkpoint.save(tmp_path, 2, ARRAYS, {})
    for name in ("update-2.safetensors", "update-00000000٢.safetensors"):
        (tmp_path / name).write_bytes(path.read_bytes())
    assert checkpoint.remove_old(tmp_path) == [] and _steps(tmp_path) == [1, 2]


def test_saved_parameters_have_a_checksum_too(tmp_path):
    path = tmp_path / "p.safetensors"
    duoln.save(path, ARRAYS)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    check_error(CheckpointError, lambda: duoln.load(path), "expected the arrays that were written")
