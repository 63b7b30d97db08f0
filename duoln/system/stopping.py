"""Signals that ask a run to stop: Ctrl-C, and what schedulers and closing terminals send.

Where a command of duoln still imports its modules, or ends, Python would print a traceback at Ctrl-C. The command has
nothing to save or to report, so it ends at once without a message, with the exit code of Ctrl-C. This does not change a
program that imports duoln.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
EXIT_CODE = 130
"""The exit code that a shell gives for Ctrl-C."""
_NAME = "duoln"


class StopRequest:
    """A request to stop."""

    number: int | None = None
    """The signal that has asked; None while none has."""


@contextmanager
def watch_stop_signals() -> Iterator[StopRequest]:
    """A request that Ctrl-C, SIGTERM or SIGHUP makes: a step overwrites the state in place and must not be cut in half.

    The same signal once more has its usual effect at once: Ctrl-C raises KeyboardInterrupt, the others end the process.
    One of another kind asks for the same, because a terminal or a scheduler may send several; the first counts.
    """
    request, before = StopRequest(), _handlers()

    def ask(number: int, frame: FrameType | None) -> None:
        request.number = request.number or number
        _install({number: before[number]})

    with _swap_handlers(ask, before):
        yield request


@contextmanager
def on_stop_signal(handler: Callable[[int], None]) -> Iterator[None]:
    """Call a function at every stopping signal, in place of the usual effect."""
    with _swap_handlers(lambda number, frame: handler(number), _handlers()):
        yield


@contextmanager
def defer_signals() -> Iterator[StopRequest]:
    """A request that a signal makes where it would end the process, or raise KeyboardInterrupt. It does so after this
    context, which can end what it has begun. Other handlers stay.
    """
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        request.number = number

    usual = (signal.SIG_DFL, signal.default_int_handler, raise_once)
    try:
        with _swap_handlers(ask, {number: handler for number, handler in _handlers().items() if handler in usual}):
            yield request
    finally:
        if request.number is not None:
            signal.raise_signal(request.number)


def _handlers() -> dict[int, Any]:
    """The present handler of each stopping signal that can be changed here. Outside the main thread there are none. A
    SIGTERM or SIGHUP that is ignored stays so: `nohup` means that.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    return {number: handler for number, handler in handlers.items()
            if handler is not None and (number == signal.SIGINT or handler != signal.SIG_IGN)}


@contextmanager
def _swap_handlers(handler: Callable[[int, FrameType | None], None], before: dict[int, Any]) -> Iterator[None]:
    _install(dict.fromkeys(before, handler))
    try:
        yield
    finally:
        _install(before)


def _install(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


# Before a command has begun, and after it ------------------------------------------------------------

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
