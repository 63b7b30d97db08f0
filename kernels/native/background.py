"""A thread that compiles the kernels that a program will need, those first for which it waits.

The program goes on as soon as the one is there that it asked for. The thread ends with the last kernel or with the
program, because nobody waits then.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence

from duoln.kernels.native import building
from duoln.kernels.native.storage import Unit
from duoln.kernels.native.toolchain import Compiler
from duoln.system.stopping import StopRequest, defer_signals

_POLL_SECONDS = 0.05
"""The time after which the one who waits looks for a signal, and for the end of the thread."""


class _Work:
    """The units that a thread compiles, and what became of them."""

    def __init__(self, units: Sequence[Unit], chosen: Compiler) -> None:
        self._chosen = chosen
        self._waiting = list(units)
        self._has_ended = dict.fromkeys(units, False)
        self.logs = dict[Unit, str]()
        """Those of units that do not compile."""
        self.error: BaseException | None = None
        """The error that ended the thread, such as that of a full disk."""
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="duoln-compiling", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            building.build(self._waiting, self._chosen, self._note, lambda: self._is_stopped)
        except BaseException as error:  # whoever waits raises it
            self.error = error

    def _note(self, unit: Unit, log: str | None) -> None:
        with self._changed:
            self._has_ended[unit] = True
            if log is not None:
                self.logs[unit] = log
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def ask(self, unit: Unit) -> None:
        """Let a unit be the next one, unless it is being compiled."""
        try:
            self._waiting.remove(unit)
        except ValueError:
            if unit in self._has_ended:
                return
            building.announce([unit], self._chosen)
        self._has_ended.setdefault(unit, False)
        self._waiting.insert(0, unit)

    def wait_for(self, unit: Unit, request: StopRequest) -> bool:
        """Wait until a unit has ended; false if the thread, or a signal, has ended the work before."""
        with self._changed:
            while not self._has_ended[unit] and not self.is_over and request.number is None:
                self._changed.wait(_POLL_SECONDS)
            return self._has_ended[unit]

    def stop(self) -> None:
        """End the compilers and the thread."""
        self._is_stopped = True
        self._thread.join()


_works = list[_Work]()
"""The work that was begun last; empty before."""


def is_at_work() -> bool:
    """True while units are compiled."""
    return any(not work.is_over for work in _works)


def begin(units: Sequence[Unit], chosen: Compiler) -> None:
    """Begin to compile units, and do not wait; while there is other work, nothing is begun."""
    if not is_at_work():
        _works[:] = [_Work(units, chosen)]


def compile_and_wait(unit: Unit, company: Sequence[Unit], chosen: Compiler) -> str | None:
    """Compile a unit, unless that is done, and begin with others; None, or the log if it does not compile.

    Raises:
        OSError: the folder cannot be written.
    """
    while True:
        with defer_signals() as request:
            begin([unit, *company], chosen)
            [work] = _works
            work.ask(unit)
            if work.wait_for(unit, request):
                return work.logs.get(unit)
            if request.number is not None:
                work.stop()
        if work.error is not None:
            raise work.error


def _stop() -> None:
    for work in _works:
        work.stop()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_works.clear)  # it has no thread of its parent
