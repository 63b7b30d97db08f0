"""IDX files: a written file can be read, and every damaged file gives a DataFormatError or an array."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from duoln.data import bounded, idx, read_idx
from duoln.data.idx import write_idx
from duoln.errors import DataError, DataFormatError

ENDINGS = ["idx", "idx.gz"]
MIB = 1 << 20
ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


def _header(*shape, code=8, ndim=None):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape) if ndim is None else ndim, *shape)


def _file(tmp_path, content, ending="idx"):
    path = tmp_path / f"file.{ending}"
    path.write_bytes(gzip.compress(content, mtime=0) if ending.endswith(".gz") else content)
    return path


def _refusal(path, **options):
    """The error of a bad file, after a check of its text."""
    with pytest.raises(DataFormatError) as caught:
        read_idx(path, **options)
    error = caught.value
    assert str(error) == f"{path}: at byte {error.offset}: expected {error.expected}, found {error.actual}"
    assert str(error.expected) and str(error.actual) and error.exit_code == 4
    return error


def _peak_of(call):
    """The result of the call, and the peak of its memory in bytes."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4), (2, 1, 3, 2),
                                   (0,), (0, 28, 28), (4, 0), (2, 0, 3, 1)])
def test_round_trip(tmp_path, shape, ending, rng):
    array = rng.integers(0, 256, shape).astype(np.uint8)
    path = tmp_path / f"file.{ending}"
    write_idx(path, array)
    values = read_idx(str(path))
    assert values.dtype == np.uint8 and values.shape == shape
    np.testing.assert_array_equal(values, array)


def test_written_bytes_are_idx(tmp_path):
    write_idx(tmp_path / "a.idx", ARRAY)
    assert (tmp_path / "a.idx").read_bytes() == b"\0\0\x08\x02\0\0\0\x03\0\0\0\x04" + bytes(range(12))


def test_gzip_is_told_by_its_content_not_by_its_name(tmp_path):
    path = tmp_path / "no-ending"
    path.write_bytes(gzip.compress(_header(3) + b"abc"))
    assert read_idx(path).tobytes() == b"abc"


def test_data_longer_than_one_chunk(tmp_path, rng):
    array = rng.integers(0, 256, (3, MIB - 1)).astype(np.uint8)
    write_idx(tmp_path / "a.idx.gz", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.idx.gz"), array)


@pytest.mark.parametrize("array", [ARRAY.astype(np.int64), np.array(3, np.uint8), np.zeros((1,) * 5, np.uint8)])
def test_writer_refuses_other_arrays(tmp_path, array):
    with pytest.raises(DataError, match="uint8 of 1 to 4 axes"):
        write_idx(tmp_path / "a.idx", array)
    assert list(tmp_path.iterdir()) == []


# Files that cannot be read ----------------------------------------------------------------------------

def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"gone\.idx: expected a file .*, found nothing there"):
        read_idx(tmp_path / "gone.idx")


def test_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)


# Files whose length is wrong --------------------------------------------------------------------------

@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_at_every_length(tmp_path, ending):
    whole = _file(tmp_path, _header(3, 4) + ARRAY.tobytes(), ending).read_bytes()
    path = tmp_path / f"cut.{ending}"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        offset = _refusal(path).offset
        assert offset == (0 if length < 4 else 4) if ending == "idx" else offset <= length, length
    path.write_bytes(whole)
    np.testing.assert_array_equal(read_idx(path), ARRAY)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("padding", [b"\0", b"x" * 5000])
def test_padded(tmp_path, ending, padding):
    error = _refusal(_file(tmp_path, _header(3, 4) + ARRAY.tobytes() + padding, ending))
    assert (error.offset, error.expected, error.actual) == (24, "the end of the file", "more bytes")


@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_data_says_how_much_is_there(tmp_path, ending):
    error = _refusal(_file(tmp_path, _header(3, 4) + bytes(7), ending))
    if ending == "idx.gz":
        assert (error.offset, error.expected, error.actual) == (19, "12 bytes of data", "7")
    else:  # known from the length of the file, before anything is read
        assert (error.offset, error.expected, error.actual) == (4, "dimensions of at most 7 bytes in all", "3 x 4 = 12")


# Files whose header is wrong --------------------------------------------------------------------------

@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("start", [b"\1\0\x08\x01", b"\0\1\x08\x01", b"PK\3\4", b"\0\0\x08"])
def test_wrong_magic(tmp_path, ending, start):
    error = _refusal(_file(tmp_path, start, ending))
    assert error.offset == 0 and "magic" in error.expected and error.actual == start.hex(" ")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("code", [0, 7, 0x09, 0x0B, 0x0C, 0x0D, 0x0E, 255])
def test_wrong_dtype_byte(tmp_path, ending, code):
    error = _refusal(_file(tmp_path, _header(1, code=code) + bytes(8), ending))
    named = {0x09: "type i1", 0x0B: "type >i2", 0x0C: "type >i4", 0x0D: "type >f4", 0x0E: "type >f8"}
    assert (error.offset, error.actual) == (2, named.get(code, f"type byte {code:#04x}"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("ndim", [0, 5, 255])
def test_wrong_number_of_dimensions(tmp_path, ending, ndim):
    error = _refusal(_file(tmp_path, _header(*[1] * ndim) + b"x", ending))
    assert (error.offset, error.expected, error.actual) == (3, "1 to 4 dimensions", ndim)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("shape", [
    (2**32 - 1,), (2**32 - 1,) * 2, (2**32 - 1,) * 4, (2**16, 2**16, 2**16, 2**16), (2**31, 2), (1, 2**28),
    (0, *[2**32 - 1] * 3), (2**32 - 1, 0, 2**32 - 1)])
def test_absurd_dimensions_in_a_tiny_file(tmp_path, ending, shape):
    path = _file(tmp_path, _header(*shape) + b"few", ending)
    error, peak = _peak_of(lambda: _refusal(path))
    assert error.offset == 4 and " x ".join(map(str, shape)) in error.actual
    assert peak < MIB


def test_max_bytes_is_the_last_size_that_is_believed(tmp_path):
    path = _file(tmp_path, _header(3, 4) + ARRAY.tobytes())
    np.testing.assert_array_equal(read_idx(path, max_bytes=24), ARRAY)
    assert _refusal(path, max_bytes=23).expected == "dimensions of at most 11 bytes in all"


# Bombs ------------------------------------------------------------------------------------------------

def test_bomb_that_claims_all_that_is_believed(tmp_path):
    path = tmp_path / "bomb.idx.gz"
    path.write_bytes(gzip.compress(_header(8 * MIB)) + gzip.compress(bytes(4 * MIB), 9, mtime=0) * 256)
    error, peak = _peak_of(lambda: _refusal(path, max_bytes=8 * MIB + 8))
    assert error.offset == 8 * MIB + 8 and error.actual == "more"
    assert peak < 13 * MIB


def test_header_that_claims_more_than_deflate_could_pack(tmp_path):
    path = _file(tmp_path, _header(200 * MIB) + bytes(1000), "idx.gz")
    error, peak = _peak_of(lambda: _refusal(path))
    assert error.offset == 4 and f"at most {path.stat().st_size * 1032 - 8} bytes" in error.expected
    assert peak < MIB


def test_the_limit_of_deflate_is_beyond_what_it_does(tmp_path):
    path = _file(tmp_path, _header(16 * MIB) + bytes(16 * MIB), "idx.gz")
    assert path.stat().st_size < 16 * MIB // 1000
    assert read_idx(path).shape == (16 * MIB,)


def test_lying_header_with_some_data_costs_what_is_there(tmp_path, rng):
    content = _header(31 * MIB) + rng.bytes(MIB)
    path = _file(tmp_path, content, "idx.gz")
    error, peak = _peak_of(lambda: _refusal(path))
    assert (error.offset, error.actual) == (8 + MIB, str(MIB))
    assert peak < 4 * MIB


# Damage -----------------------------------------------------------------------------------------------

def test_damaged_gzip_says_so(tmp_path):
    whole = bytearray(_file(tmp_path, _header(3, 4) + ARRAY.tobytes(), "idx.gz").read_bytes())
    whole[-8] ^= 1  # its CRC
    path = tmp_path / "bad.idx.gz"
    path.write_bytes(whole)
    error = _refusal(path)
    assert error.expected == "an undamaged gzip stream" and "CRC" in error.actual


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_the_reader_would_refuse_is_not_written(tmp_path, monkeypatch, ending):
    """Zeros become a thousandth of their size, which is not believed of a file that may be hostile."""
    monkeypatch.setattr(bounded, "SMALL", 5000)
    monkeypatch.setattr(idx, "_MAX_BYTES", 100_000)
    path, packed = tmp_path / f"file.{ending}", ending.endswith(".gz")
    good, bad = (4991, 90_000) if packed else (99_992, 99_993)
    for size in (good, bad) if packed else (90_000, good, bad):
        array = np.zeros(size, np.uint8)
        if size == bad:
            with pytest.raises(DataError, match="read_idx takes"):
                write_idx(path, array)
            assert len(read_idx(path, 100_000)) == good
        else:
            write_idx(path, array)
            assert np.array_equal(read_idx(path, 100_000), array)
