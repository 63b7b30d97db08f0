"""What a listener is told, and what it cannot do: change the run that it hears of, or, one of a plug-in, end it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

from duoln.errors import PluginError
from duoln.tasks.events import Evaluation, Listener, RunStart, Step
from duoln.tasks.faults import refusal, staying


class Apart(Listener):
    """A listener that cannot change a run: it gets copies of what it may write into, and the working folder stays.

    Args:
        listener: the listener.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def _tell(self, event: str, *values: Any) -> None:
        with staying():
            getattr(self._listener, event)(*values)

    def on_start(self, event: RunStart) -> None:
        self._tell("on_start", copy.deepcopy(event))

    def on_memory(self, step_bytes: int) -> None:
        self._tell("on_memory", step_bytes)

    def on_step(self, event: Step) -> None:
        self._tell("on_step", event)  # numbers alone

    def on_evaluation(self, event: Evaluation) -> None:
        self._tell("on_evaluation", copy.deepcopy(event))

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        self._tell("on_end", status, copy.deepcopy(dict(result)))


class Contained(Apart):
    """A listener of a plug-in: if it fails it gets no more events, and the run continues.

    Args:
        listener: the listener.
        source: its plug-in and distribution, for messages.
        say: takes one line about it.
    """

    def __init__(self, listener: Listener, source: str, say: Callable[[str], None]) -> None:
        super().__init__(listener)
        self._source, self._say = source, say
        self._failed = False

    def _tell(self, event: str, *values: Any) -> None:
        """Raises PluginError under DUOLN_STRICT_PLUGINS=1, where the listener fails."""
        if self._failed:
            return
        try:
            super()._tell(event, *values)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            self._failed = True
            problem = f"{self._source}: the listener's {event} raised {refusal(error)}"
            if os.environ.get("DUOLN_STRICT_PLUGINS") == "1":
                raise PluginError(problem) from error
            self._say(f"{problem}; it is told of nothing more")
