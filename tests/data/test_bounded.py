"""How readers open files: only regular files, no more bytes than a bound, and a named error for every failure."""

import gzip
import os
import zipfile

import pytest

from duoln.data import bounded
from duoln.data.bounded import Unpacked, most_unpacked, opened, read_whole
from duoln.errors import DataError, DataFormatError, DataMissingError
from duoln.testing import check_error


@pytest.mark.parametrize(("size", "cap", "most"), [
    (10, 10**9, 10_320), (10**6, 10**9, bounded.SMALL), (2 * 10**6, 10**9, 64 * 10**6), (10**9, 10**9, 10**9), (10**6, 7, 7)])
def test_the_bound_follows_from_the_size_and_the_cap(size, cap, most):
    assert most_unpacked(size, cap) == most == most_unpacked(size, most)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_error(DataFormatError, lambda: read_whole(tmp_path / "pipe", 9, "text"), "pipe", "a regular file", "a named pipe")
    check_error(DataFormatError, lambda: read_whole(os.devnull, 9, "text"), os.devnull, "a device")
    check_error(DataError, lambda: read_whole(tmp_path, 9, "text"), str(tmp_path), "cannot be read", "directory")
    check_error(DataMissingError, lambda: read_whole(tmp_path / "none", 9, "text"), "none", "(text)", "nothing there")
    check_error(DataError, lambda: read_whole(tmp_path / ("n" * 300), 9, "text"), "cannot be read", "too long")
    check_error(DataError, lambda: read_whole(tmp_path / "a\0b", 9, "text"), "a zero byte")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_whole(tmp_path / "link", 3, "text") == b"abc"
    check_error(DataFormatError, lambda: read_whole(tmp_path / "link", 2, "text"), "link", "at most 2 bytes", "found 3")


@pytest.mark.parametrize("pack", [bytes, lambda content: gzip.compress(content, mtime=0)])
def test_a_stream_ends_in_an_error_beyond_its_bound(tmp_path, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(b"ab\ncd"))
    with path.open("rb") as file:
        stream = Unpacked(path, file, 5)
        assert stream.readline() == b"ab\n" and stream.read() == b"cd" and stream.seek(1) == 1 and stream.read(1) == b"b"
    with path.open("rb") as file:
        check_error(DataFormatError, lambda: Unpacked(path, file, 4).read(), "file", "at byte 4", "at most 4 bytes", "more")
    with path.open("rb") as file:
        check_error(DataFormatError, lambda: Unpacked(path, file, 4).seek(9), "at most 4 bytes")


def test_a_damaged_stream_says_where(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"a" * 100, mtime=0)[:-3])
    with path.open("rb") as file:
        check_error(DataFormatError, lambda: Unpacked(path, file, 999).read(), "file", "undamaged gzip stream", "EOFError")


@pytest.mark.parametrize("error", [EOFError(), ValueError("v"), KeyError("k"), NotImplementedError("compression type 99"), OverflowError(),
                                   RuntimeError("encrypted"), RecursionError(), OSError("Invalid data stream"),
                                   zipfile.BadZipFile(), bounded.lzma.LZMAError("corrupt"), bounded.zlib.error(), bounded.struct.error(),
                                   bounded.tarfile.ReadError(), UnicodeDecodeError("utf-8", b"", 0, 1, "bad")], ids=repr)
def test_what_content_makes_a_reader_raise_is_named(tmp_path, error):
    def read():
        with opened(tmp_path / "file", ".x archive"):
            raise error

    (tmp_path / "file").write_bytes(b"")
    check_error(DataFormatError, read, "file", "an undamaged .x archive", type(error).__name__)


def test_a_lack_of_memory_is_no_fault_of_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MemoryError), opened(tmp_path / "file", "text"):
        raise MemoryError
