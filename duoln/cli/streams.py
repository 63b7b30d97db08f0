"""stdout and stderr: results have the one for themselves, and nothing that happens to the other stops the work.

While a command runs, what plug-ins, libraries and their processes print goes to stderr. A result that cannot be written
is an error. Remarks that cannot be written are lost: the files of a run say everything that they said.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from duoln.errors import OutputError

_STDOUT, _STDERR = 1, 2


class Claim:
    """What a command has of the streams.

    Attributes:
        stdout: where results go; None where stdout is closed.
        stderr: where talk goes; None where stderr is closed.
        written: whether anything has gone to stdout.
    """

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.written = False


_claim: Claim | None = None


@contextlib.contextmanager
def claimed() -> Iterator[Claim]:
    """For the time of a command, stdout is for results alone; a command inside a command shares its claim."""
    global _claim  # noqa: PLW0603 - the streams are the process's own, and so is the claim on them
    if _claim is not None:
        yield _claim
        return
    _hold_descriptors()
    with contextlib.ExitStack() as stack:
        _claim = Claim(_set_aside(stack, sys.stdout), sys.stderr)
        try:
            stack.enter_context(contextlib.redirect_stdout(Talk()))
            yield _claim
        finally:
            _claim = None


def child_stdout() -> int | None:
    """What the stdout of a process that works in our place is to be: a descriptor, or None for our own."""
    return _descriptor(_claim.stdout) if _claim is not None and _claim.stdout is not None else None


class _Stream(io.TextIOBase):
    """One of the two streams as it is at the moment, for those who want a file."""

    def _target(self) -> TextIO | None:
        raise NotImplementedError

    def _send(self, text: str) -> None:
        """Raises OSError or ValueError where the text cannot be written."""
        target = self._target()
        if target is None:
            raise OSError(errno.EBADF, "it is closed")
        encoding = getattr(target, "encoding", None) or "utf-8"
        target.write(text.encode(encoding, "backslashreplace").decode(encoding))
        target.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._target(), "encoding", None) or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        target = self._target()
        return target is not None and not target.closed and target.isatty()

    def fileno(self) -> int:
        target = self._target()
        if target is None:
            raise OSError(errno.EBADF, "it is closed")
        return target.fileno()

    def close(self) -> None:
        """Nothing: the stream is not ours to close."""


class Results(_Stream):
    """stdout."""

    def _target(self) -> TextIO | None:
        return sys.stdout if _claim is None else _claim.stdout

    def write(self, text: str) -> int:
        """Write a part of the result.

        Raises:
            OutputError: it cannot be written.
        """
        try:
            self._send(text)
        except (OSError, ValueError) as error:
            _abandon(self._target(), _STDOUT)
            raise OutputError(error) from error
        if _claim is not None:
            _claim.written = True
        return len(text)


class Talk(_Stream):
    """stderr."""

    def _target(self) -> TextIO | None:
        target = sys.stderr if _claim is None else _claim.stderr
        return getattr(target, "rich_proxied_file", target)  # a progress display stands before it

    def write(self, text: str) -> int:
        """Write a remark, or lose it where stderr takes none."""
        try:
            self._send(text)
        except (OSError, ValueError):
            _abandon(self._target(), _STDERR)
        return len(text)


def _set_aside(stack: contextlib.ExitStack, stdout: Any) -> TextIO | None:
    """The process's own stdout under another number, while number 1 leads to stderr: libraries in C print there too.

    A stdout that somebody put in its place, as notebooks and tests do, is used as it is.
    """
    ours = sys.__stdout__
    if ours is None or stdout is not ours or _descriptor(ours) != _STDOUT:
        as_it_is: TextIO | None = stdout
        return as_it_is
    own = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    stack.callback(os.close, own)
    stack.callback(os.dup2, own, _STDOUT)
    stack.callback(_flush, ours)
    aside = stack.enter_context(_closed_quietly(os.fdopen(os.dup(own), "w", encoding=ours.encoding, newline="")))
    return aside


def _flush(stdout: TextIO) -> None:
    """What somebody wrote past us to the process's stdout goes where its number leads by now: to stderr."""
    with contextlib.suppress(OSError, ValueError):
        stdout.flush()


@contextlib.contextmanager
def _closed_quietly(file: TextIO) -> Iterator[TextIO]:
    """A file that is closed at the end; what it could not take has been told of when it was written."""
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _descriptor(file: Any) -> int | None:
    try:
        number: int = file.fileno()
    except (OSError, ValueError, AttributeError):  # a file in memory, or closed
        return None
    return number


def _abandon(file: TextIO | None, number: int) -> None:
    """Lead a stream of the process nowhere, once it is broken: what it still holds would fail again at our end."""
    if file is not None and _descriptor(file) == number:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _hold_descriptors() -> None:
    """Open those of the first three descriptors that are closed: else a file of ours would be given such a number.

    Whatever a library then prints would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
