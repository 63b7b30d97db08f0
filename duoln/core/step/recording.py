"""The record of one call of a step: which rules it ran, and which values they passed on."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.op import Op, context_value, each_rule, replace_rules
from duoln.core.rule import Rule
from duoln.core.step.program import Backward, Call, Form, Forward, Instruction, Place, Pooled, Program, Values
from duoln.core.step.repeated import recorder, recordings

_IN_A_THREAD = "another thread computes with its values"


class Recording:
    """The record of one call of a step. Values are known by their identity while they live.

    Attributes:
        obstacle: why the step cannot be replayed; None if nothing was found.
    """

    def __init__(self, backend: Backend, natives: Sequence[Array]) -> None:
        self.obstacle: str | None = None
        self._backend, self._inputs = backend, len(natives)
        self._thread = threading.get_ident()
        self._constants: Values = []
        self._forms: list[Form | None] = []
        self._made: set[Place] = set()
        """The places of the constants that the step makes itself."""
        self._places: dict[int, Place] = {}
        self._kept: list[Any] = []
        self._instructions: list[Instruction] = []
        self._wrapped: dict[Rule, Rule] = {}
        for x in natives:
            self._new_place(x)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within this context the rules that this thread runs are recorded."""
        token = recorder.set(self)
        recordings.append(self)
        try:
            with each_rule(self._recording_rule):
                yield
        finally:
            recordings.remove(self)
            recorder.reset(token)

    def program(self, results: Sequence[Array]) -> Program | None:
        """The recorded program; None if it cannot be replayed."""
        places = tuple([self._place(x) for x in results])
        if self.obstacle:
            return None
        if not self._backend.lazy and any(self._constants[place] is not None for place in places):
            return None  # the caller may overwrite a result, so it cannot be a constant
        return Program(self._backend, self._inputs, self._constants, self._instructions, places, self._made,
                       self._forms)

    # What is computed outside of rules --------------------------------------------------------------
    def call(self, function: Callable[..., Any], natives: Sequence[Any]) -> Any:
        """Run and record a call of a function of native arrays."""
        if self._in_other_thread():
            return function(*natives)
        inputs = tuple([self._place(x) for x in natives])
        result = _unshare_bool(function(*natives))
        self._instructions.append(Call(function, inputs, self._new_place(result)))
        return result

    def constant(self, native: Any) -> None:
        """Let a native array be a constant of the step."""
        if not self._in_other_thread():
            self._made.add(self._place(native))

    def note_thread_use(self, natives: Sequence[Any]) -> None:
        """Note it if another thread uses these native arrays; a constant may be used anywhere."""
        if threading.get_ident() == self._thread:
            return
        for x in natives:
            place = self._places.get(id(x))
            if place is not None and self._constants[place] is None:
                self.obstacle = _IN_A_THREAD

    def _in_other_thread(self) -> bool:
        """True if another thread than that of the step runs this, in a copy of its context."""
        if threading.get_ident() == self._thread:
            return False
        self.obstacle = _IN_A_THREAD
        return True

    # Places ---------------------------------------------------------------------------------------
    def _new_place(self, x: Any) -> Place:
        """A place for a value that was just made. If it was known before, it is the same object, perhaps changed."""
        place = self._append(None, x)
        self._register(x, place)
        return place

    def _append(self, constant: Any, x: Any) -> Place:
        """A place for the value `x`, which may be a constant."""
        self._constants.append(constant)
        is_array = isinstance(x, np.ndarray | np.generic)
        self._forms.append(Form(x.shape, x.dtype.char, x.strides) if is_array else None)
        return len(self._constants) - 1

    def _register(self, x: Any, place: Place) -> None:
        if x is None:
            return
        if id(x) not in self._places:
            try:  # once it is gone, another value may get its identity
                self._kept.append(weakref.ref(x, partial(self._unregister, id(x))))
            except TypeError:  # a scalar of NumPy
                self._kept.append(x)
        self._places[id(x)] = place

    def _unregister(self, identity: int, _: Any) -> None:
        self._places.pop(identity, None)

    def _place(self, x: Any) -> Place:
        """The place of a value that is used: what no rule made is a constant."""
        if x is not None and id(x) in self._places:
            return self._places[id(x)]
        place = self._append(x, x)
        if x is not None and not isinstance(x, int | float):
            self._kept.append(x)
            self._places[id(x)] = place
        return place

    def _gouts(self, gout: Any) -> tuple[Place, ...]:
        return tuple([self._place(g) for g in (gout if isinstance(gout, tuple) else (gout,))])

    # Rules ----------------------------------------------------------------------------------------
    def _recording_rule(self, op: Op[..., Any], rule: Rule) -> Rule:
        """The rule, which is recorded as it runs."""
        if self._in_other_thread():
            return rule
        if rule not in self._wrapped:
            self._wrapped[rule] = self._wrap(rule)
        return self._wrapped[rule]

    def _wrap(self, rule: Rule) -> Rule:
        saved_places: dict[int, Place] = {}
        """The place of each saved value by its `id`. A saved value lives until its gradient is taken, so the newest
        entry of an `id` is the right one."""

        def forward(be: Backend, /, *natives: Array | None, **attrs: Any) -> tuple[Any, Any]:
            inputs = tuple([self._place(x) for x in natives])
            with _not_recording():
                computed: Any = rule.forward(be, *natives, **attrs)
            if not isinstance(computed, tuple) or len(computed) != 2:
                return computed  # the op explains it
            out, saved = computed
            out = tuple([_unshare_bool(x) for x in out]) if isinstance(out, tuple) else _unshare_bool(out)
            outputs = tuple([self._new_place(x) for x in (out if isinstance(out, tuple) else (out,))])
            place = self._append(None, None)
            saved_places[id(saved)] = place
            self._instructions.append(Forward(rule, attrs, inputs, outputs, isinstance(out, tuple), place))
            return out, saved

        def vjp(be: Backend, saved: Any, gout: Any, needs: Sequence[bool]) -> Sequence[Array | None]:
            assert rule.vjp is not None
            gouts = self._gouts(gout)
            with _not_recording():
                gradients = rule.vjp(be, saved, gout, needs)
            if not isinstance(gradients, tuple | list) or len(gradients) != len(needs):
                return gradients  # the tape explains it
            # What is not needed may be there too, and the tape drops it: its place is then read by nobody.
            outputs = tuple([self._new_place(g) for g in gradients])
            self._instructions.append(Backward(rule, saved_places[id(saved)], gouts, isinstance(gout, tuple),
                                               tuple(needs), outputs))
            return gradients

        def pooled(argument: int) -> Callable[..., Array]:
            def of_uses(be: Backend, uses: Sequence[tuple[Any, Any]]) -> Array:
                places = tuple([(saved_places[id(saved)], self._gouts(gout), isinstance(gout, tuple))
                                for saved, gout in uses])
                with _not_recording():
                    gradient = rule.pooled[argument](be, uses)
                self._instructions.append(Pooled(rule, argument, places, self._new_place(gradient)))
                return gradient

            return of_uses

        return Rule(rule.name, forward, None if rule.vjp is None else vjp, rule.supports,
                    {k: pooled(k) for k in rule.pooled})


def _unshare_bool(x: Any) -> Any:
    """The value as an object of its own: NumPy has one object for all that is True, and one for all that is False."""
    return np.asarray(x) if isinstance(x, np.bool_) else x


@contextlib.contextmanager
def _not_recording() -> Iterator[None]:
    """Within this context, which is inside a rule, nothing is recorded: the rule itself is."""
    with context_value(recorder, None), replace_rules(lambda op, rule: rule):
        yield
