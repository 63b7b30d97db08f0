"""The reader of .npy files that leaves their values on disk."""

import numpy as np
import pytest

from duoln.data import Expected, map_npy
from duoln.errors import DataFormatError, DataMissingError
from duoln.testing import check_error

FLOATS = Expected("f4", 2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (700, 33)])
def test_values_come_back(tmp_path, shape, rng):
    values = rng.standard_normal(shape).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    mapped = map_npy(tmp_path / "a.npy", FLOATS)
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, values)


@pytest.mark.parametrize(("values", "words"), [
    (np.zeros((2, 3)), ["float32 values along 2 axes", "float64"]), (np.zeros(3, np.float32), ["(3,)"]),
    (np.zeros((3, 2), np.float32).T, ["Fortran"]), (np.zeros((0, 2), np.float32), ["values"]),
    (np.array([["a"]], object), ["object"])])
def test_other_arrays_are_refused(tmp_path, values, words):
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    check_error(DataFormatError, lambda: map_npy(tmp_path / "a.npy", FLOATS), "a.npy", *words)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 5), np.float32))
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"\0", whole[:40], b"", b"no array", whole.replace(b"(3, 5)", b"(9, 9)")):
        path.write_bytes(content)
        check_error(DataFormatError, lambda: map_npy(path, FLOATS), "a.npy")
    check_error(DataMissingError, lambda: map_npy(tmp_path / "none.npy", FLOATS), "none.npy")
