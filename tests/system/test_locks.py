"""Locks, and all that uses them on a file system that has none: a run, its log, files written aside, kept kernels."""

import errno
import fcntl
import os

import pytest
from small_runs import fit_into, line_trainer

from duoln.errors import CheckpointError
from duoln.kernels import proofs
from duoln.kernels.native import building
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.system.filesystem import is_left, write_own
from duoln.system.locks import lock, unlock
from duoln.testing import check_error


@pytest.fixture(params=["ENOSYS", "ENOTSUP", "ENOLCK"])
def without_locks(request, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(getattr(errno, request.param), os.strerror(getattr(errno, request.param)))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def opened(tmp_path):
    (tmp_path / "file").touch()
    descriptors = [os.open(tmp_path / "file", os.O_RDWR) for _ in range(3)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_lock_keeps_others_out_until_it_is_given_back(opened):
    first, second, third = opened
    assert lock(first) == ""
    for shared in (False, True):
        with pytest.raises(BlockingIOError):
            lock(second, shared=shared)
    unlock(first)
    assert lock(second, shared=True) == "" and lock(third, wait=True, shared=True) == ""
    with pytest.raises(BlockingIOError):
        lock(first)


def test_a_file_system_without_locks_says_so(without_locks, opened):
    assert lock(opened[0]).startswith("its file system has no locks (flock: ")
    assert lock(opened[1], wait=True) and lock(opened[2], shared=True)
    unlock(opened[0])


def test_another_refusal_stays_one(opened):
    os.close(opened[0])
    with pytest.raises(OSError, match="descriptor"):
        lock(opened[0])
    opened[0] = os.dup(opened[1])


def test_a_run_goes_on_and_is_told_that_its_folder_is_not_locked(without_locks, numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path / "run", numpy_backend)
    events = list(read_log(tmp_path / "run"))
    assert events[-1]["status"] == "done" and (tmp_path / "run" / "result.json").is_file()
    [remark] = events[0]["mended"]
    assert remark.startswith(f"{tmp_path / 'run'}: not locked, because its file system has no locks (flock: ")
    assert remark.endswith("start no other run in it")


def test_a_run_on_a_file_system_that_locks_by_what_a_file_is_opened_for(monkeypatch, numpy_backend, tmp_path):
    """NFS makes its locks of others: an exclusive one wants a file that is open for writing too, a shared one for reading."""
    def flock(descriptor, operation, really=fcntl.flock):
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if mode != os.O_RDWR and (operation & fcntl.LOCK_EX or mode == os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return really(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / "result.json.12345678.part").touch()
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    first = next(iter(read_log(tmp_path)))
    assert (tmp_path / "result.json").is_file() and not list(tmp_path.rglob("*.part"))
    assert len(first["mended"]) == 1 and "a save that was cut short" in first["mended"][0]


def test_with_locks_there_is_no_remark(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    assert next(iter(read_log(tmp_path)))["mended"] == []


def test_a_lock_that_fails_otherwise_is_an_error_of_the_folder(monkeypatch, numpy_backend, tmp_path):
    def flock(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    check_error(CheckpointError, lambda: RunFolder(tmp_path, numpy_backend), str(tmp_path), "Input/output error")


def test_what_another_may_be_writing_stays(without_locks, tmp_path):
    part = tmp_path / "file.12345678.part"
    part.touch()
    assert not is_left(part)
    write_own(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_what_its_writer_has_left_is_found(tmp_path, opened):
    assert is_left(tmp_path / "file") and lock(opened[0]) == "" and not is_left(tmp_path / "file")


def test_kernels_are_compiled_and_proofs_are_kept(without_locks, monkeypatch, tmp_path):
    with building._alone(tmp_path):
        assert (tmp_path / "lock").is_file()
    monkeypatch.setattr(proofs, "_folder", lambda: tmp_path / "proofs")
    with proofs._alone():
        assert (tmp_path / "proofs" / "lock").is_file()
