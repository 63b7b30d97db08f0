"""Locks of files between processes, where the file system has locks."""

from __future__ import annotations

import errno
import fcntl
import os

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""The errors of file systems without `flock`, as Lustre that is mounted without it, or NFS without its lock service."""


def lock(descriptor: int, wait: bool = False, shared: bool = False) -> str:
    """Lock a file until it is closed, everywhere, or the process ends.

    Args:
        descriptor: the file; NFS wants one that can be written, but for a shared lock.
        wait: wait while another process has the lock.
        shared: let others have a shared lock too.

    Returns:
        The reason why the file is not locked, where its file system has no locks; else an empty text.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the system refuses it for another reason.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    return _flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Unlock a file that other processes may have open, too.

    Raises:
        OSError: the system refuses it.
    """
    _flock(descriptor, fcntl.LOCK_UN)


def _flock(descriptor: int, operation: int) -> str:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return f"its file system has no locks (flock: {os.strerror(error.errno)})"
    return ""
