"""stdout and stderr: stdout is for results only, and an error on stderr does not stop the work.

While a command runs, the output of plug-ins, libraries and their processes goes to stderr. A result that cannot be
written is an error. Remarks that cannot be written are lost, because the files of a run contain the same information.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

from duoln.errors import OutputError

_STDOUT, _STDERR = 1, 2


class Claim:
    """The streams of a command.

    Attributes:
        stdout: the stream for results; None if stdout is closed.
        stderr: the stream for remarks; None if stderr is closed.
        written: whether anything has been written to stdout.
    """

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.written = False


_claim: Claim | None = None


@contextlib.contextmanager
def claimed() -> Iterator[Claim]:
    """While a command runs, stdout is for results only; a command inside a command shares its claim."""
    global _claim  # noqa: PLW0603 - the streams are the process's own, and so is the claim on them
    if _claim is not None:
        yield _claim
        return
    _hold_descriptors()
    with contextlib.ExitStack() as stack:
        _claim = Claim(_set_aside(stack, sys.stdout), sys.stderr)
        try:
            stack.enter_context(contextlib.redirect_stdout(RemarkStream()))
            yield _claim
        finally:
            _claim = None


def child_stdout() -> int | None:
    """The stdout for a child process that does the work of this one: a descriptor, or None for this process's own."""
    return _descriptor(_claim.stdout) if _claim is not None and _claim.stdout is not None else None


class _Stream(io.TextIOBase):
    """One of the two streams in its current state, for callers that need a file."""

    name: Literal["stdout", "stderr"]

    def _target(self) -> TextIO | None:
        target = getattr(_claim or sys, self.name)
        now: TextIO | None = getattr(target, "rich_proxied_file", target)  # a progress display may have replaced it
        return now

    def _send(self, text: str) -> None:
        """Raises OSError or ValueError if the text cannot be written."""
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
        """Does nothing, because this object does not own the stream."""


class Results(_Stream):
    """stdout."""

    name = "stdout"

    def write(self, text: str) -> int:
        """Write a part of the result.

        Raises:
            OutputError: the text cannot be written.
        """
        try:
            self._send(text)
        except (OSError, ValueError) as error:
            _abandon(self._target(), _STDOUT)
            raise OutputError(error) from error
        if _claim is not None:
            _claim.written = True
        return len(text)


class RemarkStream(_Stream):
    """stderr."""

    name = "stderr"

    def write(self, text: str) -> int:
        """Write a remark; it is lost if stderr cannot be written."""
        try:
            self._send(text)
        except (OSError, ValueError):
            _abandon(self._target(), _STDERR)
        return len(text)


def _set_aside(stack: contextlib.ExitStack, stdout: Any) -> TextIO | None:
    """The process's stdout under another number, while number 1 leads to stderr, because C libraries print to it.

    A stdout that notebooks or tests have replaced is used unchanged.
    """
    ours = sys.__stdout__
    if ours is None or stdout is not ours or _descriptor(ours) != _STDOUT:
        as_it_is: TextIO | None = stdout
        return as_it_is
    own = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    stack.callback(os.close, own)
    stack.callback(os.dup2, own, _STDOUT)
    stack.callback(_quietly, ours.flush)  # what other code left in it: its number now leads to stderr
    aside = os.fdopen(os.dup(own), "w", encoding=ours.encoding, newline="")
    stack.callback(_quietly, aside.close)
    return aside


def _quietly(end: Callable[[], None]) -> None:
    """Flush or close a file; an error of a write has already been reported at that write."""
    with contextlib.suppress(OSError, ValueError):
        end()


def _descriptor(file: Any) -> int | None:
    try:
        number: int = file.fileno()
    except (OSError, ValueError, AttributeError):  # a file in memory, or closed
        return None
    return number


def _abandon(file: TextIO | None, number: int) -> None:
    """Redirect a broken stream to nowhere, because the text that it still holds would fail again at the exit."""
    if file is not None and _descriptor(file) == number:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _hold_descriptors() -> None:
    """Open those of the first three descriptors that are closed. Otherwise the next file would get such a number.

    The output of a library would then go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # this takes the lowest free number
