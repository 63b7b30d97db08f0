"""Writes files that are never incomplete: under another name first, then renamed. No file is written through a planted
link.

There are two kinds of files. A file that a user names may be a link, a device or a named pipe, and remains one. A file
that duoln names, inside a run folder, must be a regular file, because writing through a link would change a file
outside the run folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from duoln.errors import CheckpointError

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""The errors of file systems that cannot sync, or have no owners and modes, as some of networks and of user space; that
is no failure of a write."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""The errors of file systems without `flock`, as Lustre that is mounted without it, or NFS without its lock service."""
_RIGHTS = 0o777
_REFUSALS = (OSError, ValueError)
"""The errors of a name that the system, or Python, refuses: one with a zero byte is a ValueError."""


def check_regular(path: Path) -> None:
    """Raises CheckpointError for anything but a regular file at a name that duoln chose: a link, a named pipe ..."""
    _check_kind(path, stat.S_ISREG, "a regular file")


def check_folder(path: Path) -> None:
    """As `check_regular`, for a folder."""
    _check_kind(path, stat.S_ISDIR, "a folder")


def _check_kind(path: Path, wanted: Callable[[int], bool], words: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except _REFUSALS as error:
        raise _unwritable(path, error) from error
    if not wanted(mode):
        raise CheckpointError(f"{path}: expected {words}, found {file_kind(mode)}; remove it, or choose another folder")


def file_kind(mode: int) -> str:
    """The kind of a file that is not regular, in words, from its `st_mode`."""
    return next((words for is_one, words in _KINDS if is_one(mode)), "a file of no known kind")


def open_to_append(path: Path) -> int:
    """Open a file of ours for reading, and for writing at its end; made if it is not there. A descriptor.

    Raises:
        CheckpointError: it is no regular file, or has other names, whose content would change as well.
        OSError: it cannot be opened.
    """
    check_regular(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        about = os.fstat(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(descriptor)
        kind = f"{about.st_nlink} hard links to it" if stat.S_ISREG(about.st_mode) else file_kind(about.st_mode)
        raise CheckpointError(f"{path}: expected a regular file of one name, found {kind}; put a copy in its place")
    return descriptor


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content, also if the system takes only a part of it at a time.

    Raises OSError where the disk is full, or fails; some of the content may have been written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest):]


def sync(descriptor: int) -> None:
    """Sync a file or folder to the disk, where its file system can. Raises OSError as `write_all`."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that a user names. If the machine stops, the file is either the complete old one or the complete new
    one. What is no regular file, such as a device or a named pipe, is written as it is and stays.

    Raises:
        CheckpointError: the write failed; the old file is untouched.
    """
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    except _REFUSALS as error:
        raise _unwritable(path, error) from error
    if before is None or stat.S_ISREG(before.st_mode):
        _replace(Path(os.path.realpath(path)), content)  # a link stays a link
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
    except _REFUSALS as error:
        raise _unwritable(path, error) from error


def write_own(path: Path, content: bytes) -> None:
    """As `write_atomically`, for a file whose name is ours. What is there and no regular file is an error and stays."""
    check_regular(path)
    _replace(path, content)


def remove(path: Path) -> None:
    """Remove a file, if it is there. Raises CheckpointError if it cannot be removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except _REFUSALS as error:
        raise CheckpointError(f"{path}: cannot be removed: {getattr(error, 'strerror', None) or error}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are not there. Raises CheckpointError if it cannot be made."""
    try:
        for each in missing_folders(path):
            each.mkdir(exist_ok=True)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except _REFUSALS as error:
        raise _unwritable(path, error) from error


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for temporary files, which is removed at the end. Raises CheckpointError if it cannot be made."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise CheckpointError(f"[temporary files] expected a folder that can be written, found none: {error}; set "
                              "TMPDIR to one") from error
    with folder as name:
        yield Path(name)


def missing_folders(path: Path) -> list[Path]:
    """The folder and those above it that are not there, the highest first. There may be more than Python recurses."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    return missing[::-1]


def is_abandoned(part: Path) -> bool:
    """True if a partial file has lost its writer. On a file system without locks nobody knows, so it stays."""
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, which none of ours is, or one that was moved into its place just now
        return os.path.lexists(part)
    try:
        return not lock(descriptor, shared=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # other processes may write the same file
    try:
        before = os.stat(path) if os.path.lexists(path) else None
        # The file that replaces a private one is private from its first byte.
        mode = 0o666 if before is None else before.st_mode & stat.S_IRWXU
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            lock(descriptor, wait=True)  # see `is_abandoned`
            if before is not None:
                _make_like(descriptor, before)
            write_all(descriptor, content)
            sync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        _sync_folder(path.parent)
    except _REFUSALS as error:
        with suppress(*_REFUSALS):  # the first error is the one to report
            os.unlink(part)
        raise _unwritable(path, error) from error


def _make_like(descriptor: int, before: os.stat_result) -> None:
    """Give a file the owner, the group and the mode of another, or less: nobody gets a right that he had not."""
    mode, now = before.st_mode & _RIGHTS, os.fstat(descriptor)
    is_given = (now.st_uid, now.st_gid) == (before.st_uid, before.st_gid)
    if not is_given and not _try_change(os.fchown, descriptor, before.st_uid, before.st_gid):
        mode &= ~stat.S_IRWXG
    if now.st_mode & _RIGHTS != mode:
        _try_change(os.fchmod, descriptor, mode)  # else it stays as private as it was made


def _try_change(change: Callable[..., None], *args: int) -> bool:
    """Change a file, where the user may and its file system can."""
    try:
        change(*args)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno not in _CANNOT:
            raise
        return False
    return True


def _sync_folder(path: Path) -> None:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder may be one that this user can write and not read
        return
    try:
        sync(folder)
    finally:
        os.close(folder)


def _unwritable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")


# Locks between processes, where the file system has them -----------------------------------------------

def lock(descriptor: int, wait: bool = False, shared: bool = False) -> str:
    """Lock a file until it is closed, everywhere, or the process ends.

    NFS wants a descriptor that can be written, but for a shared lock, which others may have too. The result is the
    reason why the file is not locked, where its file system has no locks; else an empty text.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the system refuses it for another reason.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    return _flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Unlock a file that other processes may have open, too. Raises OSError if the system refuses it."""
    _flock(descriptor, fcntl.LOCK_UN)


def _flock(descriptor: int, operation: int) -> str:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return f"its file system has no locks (flock: {os.strerror(error.errno)})"
    return ""
