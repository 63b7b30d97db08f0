"""Ctrl-C while a command of duoln still imports its modules, or ends.

Python would print a traceback, and end the process by the signal. The command has nothing to save or to report, so it
ends at once without a message, with the exit code of Ctrl-C. This does not change a program that imports duoln.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

EXIT_CODE = 130
"""The exit code that a shell gives for Ctrl-C."""
_NAME = "duoln"


def is_own_command(argv0: str, words: Sequence[str]) -> bool:
    """True if this process is the `duoln` command, or `python -m` with duoln or a module of it.

    Args:
        argv0: `sys.argv[0]`, which is "-m" as long as Python imports the packages of the module it is to run.
        words: `sys.orig_argv`, the command line as the system has it.
    """
    if argv0 != "-m":
        return os.path.basename(argv0) == _NAME
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module.partition(".")[0] == _NAME


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end a command of ours at once, until `raise_on_interrupt`."""
    if (is_own_command(sys.argv[0] if sys.argv else "", sys.orig_argv)
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, raise_once)):
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, because the command now catches it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, raise_once)


def raise_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. The next Ctrl-C ends the process, because it may come while this one is reported."""
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)
