"""Replay: a compiled step that runs its rules alone.

Where the backend does not trace a step itself, most of the time of a small step goes to Python: checks of arguments,
the choice of rules, the tape, the trees of the optimiser. For inputs of one form they lead to the same rules in the
same order, because a step is pure. So the first two calls are recorded. If both ran the same rules on the same values,
the calls that follow run these rules alone; if not, every call runs the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.factors import keep_factors
from duoln.core.op import is_composed_only, is_watched
from duoln.core.program import Program
from duoln.core.recording import Recording


class Replay:
    """A step on native arrays that is recorded twice and then replayed.

    Args:
        step: takes arrays of one form and returns a list of arrays.
        backend: the backend of the arrays.
    """

    def __init__(self, step: Callable[..., list[Array]], backend: Backend) -> None:
        self._backend = backend
        self._step: Callable[..., list[Array]] = backend.compile(step)
        self._recorded: dict[Any, Program] = {}
        self._proved: dict[Any, Callable[..., list[Array]]] = {}
        """What runs from the third call on, by the layout of the arrays."""

    def __call__(self, *natives: Array) -> list[Array]:
        if is_watched():  # also while another step is recorded
            return self._step(*natives)
        layout = (is_composed_only(), *[x.strides for x in natives])
        if layout in self._proved:
            return self._proved[layout](*natives)
        natives = tuple([_view(x) for x in natives])
        record = Recording(self._backend, natives)
        with record.recording():
            results = self._step(*natives)
        program, first = record.program(results), self._recorded.pop(layout, None)
        if program is None:
            self._proved[layout] = self._step
        elif first is None:
            self._recorded[layout] = program
        else:
            self._proved[layout] = (self._backend.repeat(keep_factors(program).run, program.unchanged)
                                    if program.equals(first) else self._step)
        return results


def _view(x: Array) -> Array:
    """The same memory as an object of its own: one array may be two arguments, or an argument and a constant, and need
    not be at the next call.
    """
    return np.asarray(x) if isinstance(x, np.generic) else x.view()
