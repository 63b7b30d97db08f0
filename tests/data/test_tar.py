"""Reading files of a tar archive: which other members it may have, and which files are refused at once."""

import io
import tarfile

import pytest

from duoln.data import read_tar
from duoln.errors import DataFormatError
from duoln.testing import check_error


def _archive(path, *members):
    with tarfile.open(path, "w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def _read(path):
    return [(entry.place.as_posix(), entry.content) for entry in read_tar(path, 10**6, 10, lambda place: place.suffix == ".a")]


def test_the_wanted_files_are_read(tmp_path):
    long = "d/" * 60 + "x.a"
    path = _archive(tmp_path / "x.tar", ("1.a", tarfile.REGTYPE, b"one"), ("2.b", tarfile.REGTYPE, b"x" * 99), ("d", tarfile.DIRTYPE, b""),
                    (long, tarfile.REGTYPE, b""))
    assert _read(path) == [("1.a", b"one"), (long, b"")]


@pytest.mark.parametrize(("name", "kind"), [
    ("../1.a", tarfile.REGTYPE), ("/1.a", tarfile.REGTYPE), ("d/../../1.a", tarfile.REGTYPE), ("..\\1.a", tarfile.REGTYPE),
    ("1.a", tarfile.FIFOTYPE), ("1.a", tarfile.CHRTYPE), ("1.a", tarfile.BLKTYPE), ("1.a", tarfile.SYMTYPE), ("1.a", tarfile.LNKTYPE)])
def test_members_that_lead_out_and_devices(tmp_path, name, kind):
    check_error(DataFormatError, lambda: _read(_archive(tmp_path / "x.tar", (name, kind, b""))), "x.tar", "expected", "found")


def test_a_wanted_file_that_is_too_large(tmp_path):
    check_error(DataFormatError, lambda: _read(_archive(tmp_path / "x.tar", ("1.a", tarfile.REGTYPE, b"x" * 11))), "1.a", "at most 10", "11")


@pytest.mark.parametrize("size", [100, 4000, 10**5])
def test_remarks_of_digits_are_not_parsed(tmp_path, size):
    check_error(DataFormatError, lambda: _read(_archive(tmp_path / "x.tar", ("x", tarfile.XHDTYPE, b"1" * size))), "x.tar", "4096 bytes")
