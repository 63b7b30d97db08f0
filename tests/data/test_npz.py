"""The .npz reader checks every claim of a header and an archive before it allocates memory."""

import io
import struct
import zipfile

import numpy as np
import pytest

from duoln.data import npz, read_npz
from duoln.data.npz import Expected, map_npy
from duoln.errors import DataFormatError, DataMissingError
from duoln.testing import check_error

WANTED = {"x": Expected("u1", 2)}


def npy(header, content, version=1):
    text = header.encode()
    head = struct.pack("<H", len(text)) if version == 1 else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + head + text + content


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_what_numpy_wrote_is_read(write, tmp_path, rng):
    arrays = {"rows": rng.integers(0, 9, (3, 5)).astype(np.uint8), "empty": np.zeros((0, 4), np.float32),
              "text": np.array(["one", "zwölf", ""]), "number": np.array(7, np.int64), "none": np.array([], np.str_)}
    arrays["columns"] = np.asfortranarray(arrays["rows"])
    write(tmp_path / "a.npz", **arrays)
    wanted = {"rows": Expected("u1", 2), "columns": Expected("u1", 2), "empty": Expected("f4", 2), "text": Expected("U", 1),
              "number": Expected("i8", 0), "none": Expected("U", 1)}
    values = read_npz(tmp_path / "a.npz", wanted)
    for name, array in arrays.items():
        np.testing.assert_array_equal(values[name], array)
        assert values[name].flags.c_contiguous and values[name].shape == array.shape
    assert list(read_npz(tmp_path / "a.npz", {"text": Expected("U", 1)})) == ["text"]


@pytest.mark.parametrize(("content", "words"), [
    (npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 98), }\n", bytes(196)), ("uint8 values along 2 axes", "object")),
    (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 98), }\n", bytes(784)), ("uint8", "float32")),
    (npy("{'descr': '|u1', 'fortran_order': 0, 'shape': (2, 98), }\n", bytes(196)), ("npy header", "fortran_order")),
    (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (196,), }\n", bytes(196)), ("2 axes", "(196,)")),
    (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000, 98), }\n", bytes(196)), ("882000000000 bytes", "196")),
    (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-2, -98), }\n", bytes(195)), ("195",)),
    (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 98), }\n", bytes(195)), ("196 bytes", "195")),
    (npy("__import__('os').getcwd()\n", bytes(196)), ("npy header", "ValueError")),
    (npy("[1, 2]\n", bytes(196)), ("npy header",)),
    (npy("{'shape': (2, 98)}\n", bytes(196)), ("npy header", "keys")),
    (npy("{'descr': '|u1'}\n", b"", version=7), ("npy header",)),
    (b"\x93NUMPY\x01\x00\xff\xff{}", ("npy header",)),
    (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00", ("npy header", "magic")),
    (b"", ("npy header",)),
], ids=range(14))
def test_every_claim_of_a_header_is_checked(content, words, tmp_path):
    path = tmp_path / "a.npz"
    archive(path, x=content)
    check_error(DataFormatError, lambda: read_npz(path, WANTED), "a.npz: x", "expected", "found", *words)


def test_a_member_that_is_missing_and_no_archive(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, y=b"", z=b"")
    check_error(DataFormatError, lambda: read_npz(path, WANTED), "a.npz", "'x'", "y.npy, z.npy")
    path.write_bytes(b"\x80\x04K\x01.")  # a pickle
    check_error(DataFormatError, lambda: read_npz(path, WANTED), "a.npz", "undamaged .npz", "BadZipFile")
    check_error(DataMissingError, lambda: read_npz(tmp_path / "none.npz", WANTED), "none.npz", "nothing there")


def test_nothing_is_unpickled(tmp_path):
    content = io.BytesIO()
    np.save(content, np.array([print, len], object), allow_pickle=True)
    archive(tmp_path / "a.npz", x=content.getvalue())
    check_error(DataFormatError, lambda: read_npz(tmp_path / "a.npz", {"x": Expected("u1", 1)}), "uint8", "object")


def test_a_member_cannot_unpack_to_more_than_is_believed(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    archive(path, x=npy("{'descr': '|u1', 'fortran_order': False, 'shape': (20000, 98), }\n", bytes(1_960_000)))
    assert read_npz(path, WANTED)["x"].shape == (20_000, 98)
    monkeypatch.setattr(npz, "_MAX_BYTES", 1_000_000)
    check_error(DataFormatError, lambda: read_npz(path, WANTED), "a.npz: x", "at most 1000000 bytes", "1960")


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_packings_that_numpy_does_not_write_are_refused(tmp_path, packing):
    content = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 98), }\n", bytes(196))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packing) as made:
        made.writestr("x.npy", content)
    check_error(DataFormatError, lambda: read_npz(tmp_path / "a.npz", WANTED), "a.npz: x", "stored or deflated", str(packing))


def test_too_many_texts_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_MOST_TEXTS", 2)
    np.savez(tmp_path / "a.npz", x=np.array(["a", "b", "c"]))
    check_error(DataFormatError, lambda: read_npz(tmp_path / "a.npz", {"x": Expected("U", 1)}), "a.npz: x", "at most 2 texts", "3")


def test_arrays_share_what_is_believed_of_a_file(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros(500, np.uint8), y=np.zeros(500, np.uint8))
    monkeypatch.setattr(npz, "_MAX_BYTES", 1000)  # each has a header of 128 bytes
    check_error(DataFormatError, lambda: read_npz(tmp_path / "a.npz", {k: Expected("u1", 1) for k in "xy"}), "a.npz: y", "at most 372", "628")


# .npy: values stay on disk ----------------------------------------------------------------------

FLOATS = Expected("f4", 2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (700, 33)])
def test_mapped_values_come_back(tmp_path, shape, rng):
    values = rng.standard_normal(shape).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    mapped = map_npy(tmp_path / "a.npy", FLOATS)
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, values)


@pytest.mark.parametrize(("values", "words"), [
    (np.zeros((2, 3)), ["float32 values along 2 axes", "float64"]), (np.zeros(3, np.float32), ["(3,)"]),
    (np.zeros((3, 2), np.float32).T, ["Fortran"]), (np.zeros((0, 2), np.float32), ["values"]),
    (np.array([["a"]], object), ["object"])])
def test_other_npy_arrays_are_refused(tmp_path, values, words):
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    check_error(DataFormatError, lambda: map_npy(tmp_path / "a.npy", FLOATS), "a.npy", *words)


def test_damaged_npy_files_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 5), np.float32))
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"\0", whole[:40], b"", b"no array", whole.replace(b"(3, 5)", b"(9, 9)")):
        path.write_bytes(content)
        check_error(DataFormatError, lambda: map_npy(path, FLOATS), "a.npy")
    check_error(DataMissingError, lambda: map_npy(tmp_path / "none.npy", FLOATS), "none.npy")
