"""Replay: a compiled step that runs its rules alone.

Most of the time of a small step goes to Python: checks of arguments, the choice of rules, the tape, the trees of the
optimizer. For inputs of one form they lead to the same rules in the same order, because a step is pure. So the first
two calls are recorded. If both ran the same rules on the same values, the calls that follow run these rules alone, as
NumPy computes them, CuPy captures them or MLX traces them. If not, a third call is recorded, because the first one may
have made what later ones find; if that differs too, a CompileWarning says why, and every call runs the step itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.op import is_composed_only, is_watched
from duoln.core.step.program import Program, binders, keep_factors, rewrites
from duoln.core.step.recording import Recording
from duoln.core.step.repeated import note_thread_uses, recordings
from duoln.core.step.symbol import form_of
from duoln.core.step.variables import Marks, changed_variable
from duoln.errors import CompileWarning

_MAX_LAYOUTS = 16
"""A step is recorded for so many layouts of its arrays; arrays in other layouts are copied."""
_MOST_DIFFERENT = 2
"""So many calls that differ from the one before are enough: the step is not repeated."""
_CALLER = 4
"""Number of frames from a warning up to the caller of the compiled step."""


class Bindable:
    """A program that runs as it is until it is bound to a table, which takes as long as some of its calls.

    Args:
        run: the program.
        bind: makes the table, and gives it with the function that runs it; None where there can be none.
        calls: after how many calls it is bound.
    """

    def __init__(self, run: Callable[..., list[Array]],
                 bind: Callable[[], tuple[Any, Callable[..., list[Array]]] | None], calls: int) -> None:
        self._run, self._bind, self._left = run, bind, calls
        self._table: Any = None

    def table(self) -> Any:
        """The table, see `program.binders`; None if there can be none."""
        if self._left >= 0:
            self._left = -1
            if (bound := self._bind()) is not None:
                self._table, self._run = bound
        return self._table

    def __call__(self, *natives: Array) -> list[Array]:
        """The results."""
        if self._left > 0:
            self._left -= 1
        elif self._left == 0:
            self.table()
        return self._run(*natives)


class Replay:
    """A step on native arrays that is recorded twice and then replayed.

    Args:
        step: takes arrays of one form and returns a list of arrays.
        backend: the backend of the arrays.
        variables: gives what the variables that the step reads hold.
        patience: calls before a program is bound to a table.

    Attributes:
        step: the step itself, as the backend runs it.
        changed: True if a variable holds something else than when the step was recorded: every call runs the step.
    """

    def __init__(self, step: Callable[..., list[Array]], backend: Backend,
                 variables: Callable[[], Marks] = dict, patience: int = 0) -> None:
        self._backend, self._variables, self._patience = backend, variables, patience
        self.step: Callable[..., list[Array]] = step if backend.lazy else backend.compile(step)
        self.changed = False
        self._recorded: dict[Any, tuple[Program, int]] = {}
        """The last program of each layout, and how many calls differed from the one before."""
        self._marks: dict[Any, Marks] = {}
        """The marks of the variables before the last record of each layout."""
        self.proved: dict[Any, Callable[..., list[Array]]] = {}
        """The function that runs from the third call on, by the layout of the arrays."""

    def __call__(self, *natives: Array) -> list[Array]:
        if recordings:
            note_thread_uses(natives)
        if is_watched():  # also while another step is recorded
            return self.step(*natives)
        layout = self.layout(natives)
        if layout in self.proved:
            return self.proved[layout](*natives)
        known = self.proved.keys() | self._recorded
        if layout not in known and len(known) >= _MAX_LAYOUTS:
            natives = tuple([x.copy() for x in natives])  # there is one contiguous layout
            layout = self.layout(natives)
        if layout in self.proved:
            return self.proved[layout](*natives)
        natives = tuple([self._view(x) for x in natives])
        record, before, marks = Recording(self._backend, natives), self._marks.get(layout, {}), self._variables()
        self._marks[layout] = marks
        with record.recording():
            results = self.step(*natives)
        program, (first, differed) = record.program(results), self._recorded.pop(layout, (None, 0))
        obstacle = record.obstacle
        if program is not None and first and (
                difference := changed_variable(before, marks) or program.difference(first)):
            differed += 1
            first = None  # the next call is compared with this one
            obstacle = difference if differed == _MOST_DIFFERENT else None
        if obstacle:
            warnings.warn(f"a compiled step runs as it is: {obstacle}", CompileWarning, stacklevel=_CALLER)
        if program is None or obstacle:
            self.proved[layout] = self.step
        elif first is None:
            self._recorded[layout] = program, differed
        else:
            program = keep_factors(program)
            if self._backend.name in rewrites:
                program = rewrites[self._backend.name](program)
            if self._backend.lazy:  # MLX cannot trace an array that is an argument and a constant
                array = type(natives[0])
                constants = [self._view(x) if isinstance(x, array) else x for x in program.constants]
                self._backend.wait([x for x in constants if isinstance(x, array)])
                program = replace(program, constants=constants)
            run = self._backend.repeat(program.function(), program.unchanged)
            self.proved[layout] = self._bindable(program, natives, run) if self._backend.name in binders else run
        return results

    def _bindable(self, program: Program, natives: Sequence[Array], run: Callable[..., list[Array]]) -> Bindable:
        forms = [form_of(x.shape, x.dtype, x.strides) for x in natives]

        def bind() -> tuple[Any, Callable[..., list[Array]]] | None:
            table = binders[self._backend.name](program, forms, run)
            return None if table is None else (table, self._backend.compile(table))

        made = Bindable(run, bind, self._patience)
        if not self._patience:
            made.table()
        return made

    def check_variables(self, call: int) -> None:
        """Look whether the variables still hold what they held; if not, a CompileWarning names one."""
        repeated = [] if self.changed else [layout for layout, run in self.proved.items() if run is not self.step]
        now = self._variables() if repeated else {}
        if change := next(filter(None, [changed_variable(self._marks[layout], now) for layout in repeated]), None):
            self.changed = True
            warnings.warn(f"a compiled step runs as it is from call {call} on; its results since call {call // 2} may "
                          f"be of an old value: {change}", CompileWarning, stacklevel=_CALLER)

    def layout(self, natives: Sequence[Array]) -> Any:
        """The arrays' layout in memory and the rules that run: calls that are alike in both repeat one program."""
        return (is_composed_only(), *(() if self._backend.lazy else [x.strides for x in natives]))

    def _view(self, x: Array) -> Array:
        """The same values as an object of its own: one array may be two arguments, or an argument and a constant, and
        need not be at the next call.
        """
        if self._backend.lazy:
            return type(x)(x)
        return np.asarray(x) if isinstance(x, np.generic) else x.view()
