"""Reading files of a tar archive: which other members it may have, and which files are refused at once."""

import gzip
import io
import tarfile

import pytest

from duoln.data import read_tar
from duoln.errors import DataFormatError
from duoln.testing import check_error


def _archive(path, *members):
    path.parent.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("name", ["../1.a", "/1.a", "d/../../1.a", "..\\1.a", "a/..", "/etc/passwd"])
def test_members_that_lead_out(tmp_path, name):
    path = _archive(tmp_path / "in" / "x.tar", ("1.a", tarfile.REGTYPE, b"one"), (name, tarfile.REGTYPE, b"x"))
    check_error(DataFormatError, lambda: _read(path), "x.tar", repr(name), "at byte 1024", "a path inside of the archive", "leads out of it")
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "x.tar"]


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_members_that_are_no_files(tmp_path, kind):
    path = _archive(tmp_path / "x.tar", ("1.a", kind, b""))
    check_error(DataFormatError, lambda: _read(path), "x.tar: '1.a'", "plain files and folders", repr(kind))


@pytest.mark.parametrize(("pack", "size", "words"), [
    (gzip.compress, 60, ["an undamaged gzip stream"]), (bytes, 512 + 5, ["undamaged tar archive", "unexpected end of data"]),
    (bytes, 512 + 60, ["at byte 572", "at most 572 bytes", "more"]),
    (bytes, 1024, ["at byte 1024", "ends an archive", "0 bytes on"]), (bytes, 1024 + 100, ["at byte 1024", "ends an archive", "100 bytes on"])])
def test_archives_that_were_cut(tmp_path, pack, size, words):
    path = _archive(tmp_path / "x.tar", *((f"{k}.a", tarfile.REGTYPE, b"0123456789") for k in range(5)))
    path.write_bytes(pack(path.read_bytes())[:size])
    check_error(DataFormatError, lambda: _read(path), "x.tar", *words)


def test_another_block_in_the_place_of_a_header(tmp_path):
    path = _archive(tmp_path / "x.tar", *((f"{k}.a", tarfile.REGTYPE, b"one") for k in range(5)))
    content = path.read_bytes()
    path.write_bytes(content[:1024] + b"#" * 12 + content[1036:])
    check_error(DataFormatError, lambda: _read(path), "at byte 1024", "another block")


def test_a_long_name_that_claims_to_be_endless(tmp_path):
    """Nothing of the size that its header claims is read."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
    check_error(DataFormatError, lambda: list(read_tar(path, 10**9, 10, lambda place: True)), str(path), "at most 4096")


def test_a_wanted_file_that_is_too_large(tmp_path):
    check_error(DataFormatError, lambda: _read(_archive(tmp_path / "x.tar", ("1.a", tarfile.REGTYPE, b"x" * 11))), "1.a", "at most 10", "11")


@pytest.mark.parametrize("size", [100, 4000, 10**5])
def test_remarks_of_digits_are_not_parsed(tmp_path, size):
    check_error(DataFormatError, lambda: _read(_archive(tmp_path / "x.tar", ("x", tarfile.XHDTYPE, b"1" * size))), "x.tar", "4096 bytes")
