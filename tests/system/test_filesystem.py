"""A file that a user names: what is there stays what it is, and nobody may read more than before."""

import errno
import fcntl
import os
import stat
import threading

import numpy as np
import pytest
from small_runs import fit_into, line_trainer

import duoln
from duoln.errors import CheckpointError
from duoln.kernels import proofs
from duoln.kernels.native import building
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.system.filesystem import (
    is_abandoned,
    lock,
    unlock,
    write_atomically,
    write_own,
)
from duoln.testing import check_error


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def _read_while(path, write):
    """What a reader of a named pipe gets while a function writes."""
    heard = []
    reader = threading.Thread(target=lambda: heard.append(path.read_bytes()), daemon=True)
    reader.start()
    write()
    reader.join(10)
    return heard


@pytest.mark.parametrize("link", [False, True])
def test_a_named_pipe_is_written_and_stays(link, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    named = tmp_path / "link" if link else pipe
    if link:
        named.symlink_to(pipe)
    assert _read_while(pipe, lambda: write_atomically(named, b"words")) == [b"words"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and sorted(os.listdir(tmp_path)) == sorted({"pipe", named.name})


def test_a_pipe_by_its_descriptor(tmp_path):
    read, write = os.pipe()
    write_atomically(f"/dev/fd/{write}", b"words")
    os.close(write)
    assert os.read(read, 100) == b"words"
    os.close(read)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
@pytest.mark.parametrize("write", [write_atomically, write_own])
def test_a_file_keeps_its_mode(mode, write, tmp_path, usual_umask):
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(path, b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == mode


def test_nobody_reads_a_private_file_while_it_is_written(tmp_path, monkeypatch, usual_umask):
    path, seen = tmp_path / "weights", []
    path.write_bytes(b"old")
    path.chmod(0o600)
    really = os.write

    def written(descriptor, content):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return really(descriptor, content)

    monkeypatch.setattr(os, "write", written)
    write_atomically(path, b"new")
    assert seen == [0o600]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_follows_the_umask(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        duoln.save(tmp_path / "weights", {"w": np.ones(1)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "weights").stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    os.chown(path, 12345, 12346)
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


def test_a_group_that_cannot_be_kept_loses_its_rights(tmp_path, monkeypatch):
    """The file now has the group of who wrote it, for which the rights were not meant."""
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12346)
    else:
        monkeypatch.setattr(os, "fstat", lambda descriptor: os.stat_result((0,) * 10))

    def refused(*arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM])
def test_a_file_system_without_owners_and_modes(number, tmp_path, monkeypatch, usual_umask):
    """The content is written; a file that cannot get its mode back stays as private as it was made."""
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    path.chmod(0o644)

    def refused(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fchmod", refused)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o600


def _failing_for_folders(monkeypatch, number, name="fsync"):
    really = getattr(os, name)

    def call(what, *arguments, **named):
        is_folder = os.path.isdir(what) if name == "open" else stat.S_ISDIR(os.fstat(what).st_mode)
        if is_folder:
            raise OSError(number, os.strerror(number))
        return really(what, *arguments, **named)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_syncs_no_folders(number, tmp_path, monkeypatch):
    _failing_for_folders(monkeypatch, number)
    write_atomically(tmp_path / "file", b"words")
    assert (tmp_path / "file").read_bytes() == b"words"


def test_a_folder_that_may_be_written_and_not_read(tmp_path, monkeypatch):
    _failing_for_folders(monkeypatch, errno.EACCES, "open")
    write_atomically(tmp_path / "file", b"words")
    assert (tmp_path / "file").read_bytes() == b"words"


@pytest.mark.parametrize("write", [write_atomically, write_own])
def test_every_single_call_of_a_write_may_fail(write, tmp_path, monkeypatch):
    """The n-th call fails, for n = 1, 2, 3 ... until none fails: a named error, a whole file of the old mode, nothing beside it."""
    path, n, failed = tmp_path / "weights", 0, []
    while len(failed) == n:
        n += 1
        path.write_bytes(b"old")
        path.chmod(0o640)
        left = n

        def failing(name, really):
            def call(*arguments, **named):
                nonlocal left
                left -= 1
                if left == 0:
                    failed.append(name)
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return really(*arguments, **named)
            return call

        with monkeypatch.context() as patch:
            for name in ("stat", "open", "fstat", "fchmod", "write", "fsync", "replace"):
                patch.setattr(os, name, failing(name, getattr(os, name)))
            try:
                write(path, b"new")
            except CheckpointError as error:
                assert "Input/output error" in str(error)
        assert path.read_bytes() in (b"old", b"new") and stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.listdir(tmp_path) == ["weights"]
    assert {"stat", "open", "fstat", "fchmod", "write", "fsync", "replace"} <= set(failed)


# Locks, and all that uses them on a file system that has none: a run, its log, files written aside, kept kernels

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


def test_a_lock_that_fails_otherwise_is_an_error_of_the_folder(monkeypatch, numpy_backend, tmp_path):
    def flock(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    check_error(CheckpointError, lambda: RunFolder(tmp_path, numpy_backend), str(tmp_path), "Input/output error")


def test_what_another_may_be_writing_stays(without_locks, tmp_path):
    part = tmp_path / "file.12345678.part"
    part.touch()
    assert not is_abandoned(part)
    write_own(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_what_its_writer_has_left_is_found(tmp_path, opened):
    assert is_abandoned(tmp_path / "file") and lock(opened[0]) == "" and not is_abandoned(tmp_path / "file")


def test_kernels_are_compiled_and_proofs_are_kept(without_locks, monkeypatch, tmp_path):
    with building._lock_folder(tmp_path):
        assert (tmp_path / "lock").is_file()
    monkeypatch.setattr(proofs, "_folder", lambda: tmp_path / "proofs")
    with proofs._lock_proofs():
        assert (tmp_path / "proofs" / "lock").is_file()
