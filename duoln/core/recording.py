"""The record of one call of a step: which rules it ran, and which values they passed on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.op import Op, each_rule
from duoln.core.program import Backward, Call, Forward, Instruction, Place, Pooled, Program, Values
from duoln.core.repeated import recorder
from duoln.core.rule import Rule


class Recording:
    """The record of one call of a step. Values are known by their identity while they live."""

    def __init__(self, backend: Backend, natives: Sequence[Array]) -> None:
        self._backend = backend
        self._constants: Values = []
        self._places: dict[int, Place] = {}
        self._kept: list[Any] = []
        self._instructions: list[Instruction] = []
        self._wrapped: dict[Rule, Rule] = {}
        self._is_repeatable = True
        for x in natives:
            self._new(x)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within this context the rules that this thread runs are recorded."""
        token = recorder.set(self._call)
        try:
            with each_rule(self._through):
                yield
        finally:
            recorder.reset(token)

    def program(self, results: Sequence[Array]) -> Program | None:
        """What was recorded; None if it cannot be replayed."""
        places = tuple([self._place(x) for x in results])
        if not self._is_repeatable or any(self._constants[place] is not None for place in places):
            return None  # the caller may overwrite a result, so it cannot be a constant
        return Program(self._backend, self._constants, self._instructions, places)

    # Places ---------------------------------------------------------------------------------------
    def _new(self, x: Any) -> Place:
        """A place for a value that was just made. If it was known before, it is the same object, perhaps changed."""
        place = len(self._constants)
        self._constants.append(None)
        if isinstance(x, np.generic | int | float) and id(x) in self._places:
            self._is_repeatable = False  # Python and NumPy have one object for several small values
        self._know(x, place)
        return place

    def _know(self, x: Any, place: Place) -> None:
        if x is None:
            return
        if id(x) not in self._places:
            try:  # once it is gone, another value may get its identity
                self._kept.append(weakref.ref(x, partial(self._forget, id(x))))
            except TypeError:  # a scalar of NumPy
                self._kept.append(x)
        self._places[id(x)] = place

    def _forget(self, identity: int, _: Any) -> None:
        self._places.pop(identity, None)

    def _place(self, x: Any) -> Place:
        """The place of a value that is used: what no rule made is a constant."""
        if x is not None and id(x) in self._places:
            return self._places[id(x)]
        place = len(self._constants)
        self._constants.append(x)
        if x is not None and not isinstance(x, int | float):
            self._kept.append(x)
            self._places[id(x)] = place
        return place

    def _gouts(self, gout: Any) -> tuple[Place, ...]:
        return tuple([self._place(g) for g in (gout if isinstance(gout, tuple) else (gout,))])

    # Rules ----------------------------------------------------------------------------------------
    def _through(self, op: Op[..., Any], rule: Rule) -> Rule:
        """The rule, which is recorded as it runs."""
        if rule not in self._wrapped:
            self._wrapped[rule] = self._wrap(rule)
        return self._wrapped[rule]

    def _wrap(self, rule: Rule) -> Rule:
        saved_places: dict[int, Place] = {}
        """Of what calls saved: it lives until its gradient is taken, so the newest with an identity is the one."""

        def forward(be: Backend, *natives: Array | None, **attrs: Any) -> tuple[Any, Any]:
            inputs = tuple([self._place(x) for x in natives])
            with _not_recording():
                computed: Any = rule.forward(be, *natives, **attrs)
            if not isinstance(computed, tuple) or len(computed) != 2:
                return computed  # the op explains it
            out, saved = computed
            outputs = tuple([self._new(x) for x in (out if isinstance(out, tuple) else (out,))])
            place = len(self._constants)
            self._constants.append(None)
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
            outputs = tuple([self._new(g) for g in gradients])
            self._instructions.append(Backward(rule, saved_places[id(saved)], gouts, isinstance(gout, tuple),
                                               tuple(needs), outputs))
            return gradients

        def pooled(argument: int) -> Callable[..., Array]:
            def of_uses(be: Backend, uses: Sequence[tuple[Any, Any]]) -> Array:
                places = tuple([(saved_places[id(saved)], self._gouts(gout), isinstance(gout, tuple))
                                for saved, gout in uses])
                with _not_recording():
                    gradient = rule.pooled[argument](be, uses)
                self._instructions.append(Pooled(rule, argument, places, self._new(gradient)))
                return gradient

            return of_uses

        return Rule(rule.name, forward, None if rule.vjp is None else vjp, rule.supports,
                    {k: pooled(k) for k in rule.pooled})

    def _call(self, function: Callable[..., Any], natives: Sequence[Any]) -> Any:
        inputs = tuple([self._place(x) for x in natives])
        result = function(*natives)
        self._instructions.append(Call(function, inputs, self._new(result)))
        return result


@contextlib.contextmanager
def _not_recording() -> Iterator[None]:
    """Within this context, which is inside a rule, nothing is recorded: the rule itself is."""
    token = recorder.set(None)
    try:
        with each_rule(lambda op, rule: rule):
            yield
    finally:
        recorder.reset(token)
