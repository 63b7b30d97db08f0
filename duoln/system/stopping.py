"""Signals that ask a run to stop: Ctrl-C, and what schedulers and closing terminals send."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from duoln.system.starting import raise_once

STOPPING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))


class StopRequest:
    """A request to stop."""

    number: int | None = None
    """The signal that has asked; None while none has."""


@contextmanager
def stop_requested() -> Iterator[StopRequest]:
    """A request that Ctrl-C, SIGTERM or SIGHUP makes: a step overwrites the state in place and must not be cut in half.

    The same signal once more has its usual effect at once: Ctrl-C raises KeyboardInterrupt, the others end the process.
    One of another kind asks for the same, because a terminal or a scheduler may send several; the first counts.
    """
    request, before = StopRequest(), _handlers()

    def ask(number: int, frame: FrameType | None) -> None:
        request.number = request.number or number
        _install({number: before[number]})

    with _handled(ask, before):
        yield request


@contextmanager
def handed_on(handler: Callable[[int], None]) -> Iterator[None]:
    """Call a function at every stopping signal, in place of the usual effect."""
    with _handled(lambda number, frame: handler(number), _handlers()):
        yield


@contextmanager
def deferred() -> Iterator[StopRequest]:
    """A request that a signal makes where it would end the process, or raise KeyboardInterrupt. It does so after this
    context, which can end what it has begun. Other handlers stay.
    """
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        request.number = number

    usual = (signal.SIG_DFL, signal.default_int_handler, raise_once)
    try:
        with _handled(ask, {number: handler for number, handler in _handlers().items() if handler in usual}):
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
def _handled(handler: Callable[[int, FrameType | None], None], before: dict[int, Any]) -> Iterator[None]:
    _install(dict.fromkeys(before, handler))
    try:
        yield
    finally:
        _install(before)


def _install(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
