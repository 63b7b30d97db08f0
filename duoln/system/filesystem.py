"""Writes files that are never incomplete: under another name first, then renamed. No file is written through a planted
link.

There are two kinds of files. A file that a user names may be a link, and remains a link. A file that duoln names,
inside a run folder, must be a regular file, because writing through a link would change a file outside the run folder.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from duoln.errors import CheckpointError

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file at a name that duoln chose.

    Raises:
        CheckpointError: it is a link, a folder, a named pipe ...
    """
    _check_kind(path, stat.S_ISREG, "a regular file")


def check_folder(path: Path) -> None:
    """As `check_regular`, for a folder.

    Raises:
        CheckpointError: it is a link, a file ...
    """
    _check_kind(path, stat.S_ISDIR, "a folder")


def _check_kind(path: Path, wanted: Callable[[int], bool], words: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not wanted(mode):
        raise CheckpointError(f"{path}: expected {words}, found {kind_of(mode)}; remove it, or choose another folder")


def kind_of(mode: int) -> str:
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
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(descriptor)
        kind = f"{about.st_nlink} hard links to it" if stat.S_ISREG(about.st_mode) else kind_of(about.st_mode)
        raise CheckpointError(f"{path}: expected a regular file of one name, found {kind}; put a copy in its place")
    return descriptor


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content, also if the system takes only a part of it at a time.

    Raises:
        OSError: the disk is full, or fails; some of the content may have been written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest):]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that a user names. If the machine stops, the file is either the complete old one or the complete new
    one.

    Raises:
        CheckpointError: the write failed; the old file is untouched.
    """
    _replace(Path(os.path.realpath(path)), content)  # a link stays a link


def write_own(path: Path, content: bytes) -> None:
    """As `write_atomically`, for a file whose name is ours.

    Raises:
        CheckpointError: the write failed, or there is no regular file at that name; what is there is untouched.
    """
    check_regular(path)
    _replace(path, content)


def remove(path: Path) -> None:
    """Remove a file, if it is there.

    Raises:
        CheckpointError: it cannot be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be removed: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are not there.

    Raises:
        CheckpointError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def is_left(part: Path) -> bool:
    """Whether a file that was written aside has lost its writer."""
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, which none of ours is, or one that was moved into its place just now
        return os.path.lexists(part)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # other processes may write the same file
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # see `is_left`
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):  # the first error is the one to report
            os.unlink(part)
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
