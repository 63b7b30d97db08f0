"""Calls of functions of native arrays that a recorded step repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

recorder: ContextVar[Callable[[Callable[..., Any], Sequence[Any]], Any] | None] = ContextVar("recorder", default=None)
"""Runs and records such a call; None while nothing is recorded."""


def repeated(function: Callable[..., Any], *natives: Any) -> Any:
    """`function(*natives)`, now and whenever the step that is being recorded is replayed.

    What is computed from native arrays outside of a rule goes through this function, also a check of their values.
    """
    record = recorder.get()
    return function(*natives) if record is None else record(function, natives)
