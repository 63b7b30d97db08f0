"""Computations of a recorded step outside of rules, and other threads' uses of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from duoln.backends.protocol import READS_ON_HOST
from duoln.errors import CompileError


class Recorder(Protocol):
    """The record of one call of a step."""

    def call(self, function: Callable[..., Any], natives: Sequence[Any]) -> Any:
        """Run and record a call of a function of native arrays."""

    def constant(self, native: Any) -> None:
        """Let a native array be a constant of the step."""

    def note_thread_use(self, natives: Sequence[Any]) -> None:
        """Note it if this thread is another than that of the step, and uses values of the step."""


recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
"""The recorder of this thread; None while nothing is recorded."""
recordings: list[Recorder] = []
"""The records that are being made, of all threads."""


def repeated(function: Callable[..., Any], *natives: Any) -> Any:
    """`function(*natives)`, now and whenever the step that is being recorded is replayed.

    What is computed from native arrays outside of a rule goes through this function, also a check of their values.
    """
    record = recorder.get()
    if record is not None:
        return record.call(function, natives)
    note_thread_uses(natives)
    return function(*natives)


def constant(native: Any) -> Any:
    """The native array itself. Its values depend on no tensor, so a step that makes it may keep it as a constant."""
    record = recorder.get()
    if record is not None:
        record.constant(native)
    return native


def read_on_host(native: Any) -> None:
    """Tell the steps that are being recorded that this thread reads a value on the host.

    Raises:
        CompileError: this thread runs such a step. What it does with the value would not be repeated.
    """
    if recorder.get() is not None:
        raise CompileError(READS_ON_HOST)
    note_thread_uses((native,))


def note_thread_uses(natives: Sequence[Any]) -> None:
    """Tell the recorded steps of other threads that this thread uses these arrays.

    What it computes from their values is no part of their record, so such a step cannot be replayed.
    """
    for record in tuple(recordings):
        record.note_thread_use(natives)
