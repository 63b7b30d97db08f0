"""Listeners of plug-ins: a listener that fails gets no more events, and the run continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from duoln.errors import PluginError
from duoln.tasks.events import Evaluation, Listener, RunStart, Step
from duoln.tasks.faults import refusal, staying


class Contained(Listener):
    """A listener that cannot stop a run.

    Args:
        listener: the listener of the plug-in.
        source: its plug-in and distribution, for messages.
        say: takes one line about it.
    """

    def __init__(self, listener: Listener, source: str, say: Callable[[str], None]) -> None:
        self._listener, self._source, self._say = listener, source, say
        self._failed = False

    def _tell(self, event: str, *values: Any) -> None:
        """Raises PluginError under DUOLN_STRICT_PLUGINS=1, where the listener fails."""
        if self._failed:
            return
        with staying():
            try:
                getattr(self._listener, event)(*values)
            except (KeyboardInterrupt, MemoryError):
                raise
            except BaseException as error:
                self._failed = True
                problem = f"{self._source}: the listener's {event} raised {refusal(error)}"
                if os.environ.get("DUOLN_STRICT_PLUGINS") == "1":
                    raise PluginError(problem) from error
                self._say(f"{problem}; it is told of nothing more")

    def on_start(self, event: RunStart) -> None:
        self._tell("on_start", event)

    def on_memory(self, step_bytes: int) -> None:
        self._tell("on_memory", step_bytes)

    def on_step(self, event: Step) -> None:
        self._tell("on_step", event)

    def on_evaluation(self, event: Evaluation) -> None:
        self._tell("on_evaluation", event)

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        self._tell("on_end", status, dict(result))
