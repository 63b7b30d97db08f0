"""A program: a compiled step as the list of the rules that it runs, for inputs of one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.rule import Rule

Place = int
"""The index of a value of a program: an array, or what a rule saved."""
Values = list[Any]


class Forward(NamedTuple):
    """A rule computes its value."""

    rule: Rule
    attrs: dict[str, Any]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    is_tuple: bool
    saved: Place

    def run(self, backend: Backend, values: Values) -> None:
        out, values[self.saved] = self.rule.forward(backend, *[values[k] for k in self.inputs], **self.attrs)
        if self.is_tuple:
            for place, value in zip(self.outputs, out, strict=True):
                values[place] = value
        else:
            values[self.outputs[0]] = out

    def reads(self) -> tuple[Place, ...]:
        return self.inputs

    def writes(self) -> tuple[Place, ...]:
        return (*self.outputs, self.saved)


class Backward(NamedTuple):
    """A rule computes the gradients of its inputs."""

    rule: Rule
    saved: Place
    gouts: tuple[Place, ...]
    is_tuple: bool
    needs: tuple[bool, ...]
    outputs: tuple[Place, ...]

    def run(self, backend: Backend, values: Values) -> None:
        gout = tuple([values[k] for k in self.gouts]) if self.is_tuple else values[self.gouts[0]]
        assert self.rule.vjp is not None
        for place, gradient in zip(self.outputs, self.rule.vjp(backend, values[self.saved], gout, self.needs),
                                   strict=True):
            values[place] = gradient

    def reads(self) -> tuple[Place, ...]:
        return (self.saved, *self.gouts)

    def writes(self) -> tuple[Place, ...]:
        return self.outputs


class Pooled(NamedTuple):
    """A rule computes the gradient of an input of many calls at once."""

    rule: Rule
    argument: int
    uses: tuple[tuple[Place, tuple[Place, ...], bool], ...]
    """For each call: the place of what it saved, those of its outputs' gradients, and True if these are a tuple."""
    output: Place

    def run(self, backend: Backend, values: Values) -> None:
        uses = [(values[saved], tuple([values[k] for k in gouts]) if is_tuple else values[gouts[0]])
                for saved, gouts, is_tuple in self.uses]
        values[self.output] = self.rule.pooled[self.argument](backend, uses)

    def reads(self) -> tuple[Place, ...]:
        return tuple([place for saved, gouts, _ in self.uses for place in (saved, *gouts)])

    def writes(self) -> tuple[Place, ...]:
        return (self.output,)


class Call(NamedTuple):
    """A function of arrays that is no rule, see `repeated`."""

    function: Callable[..., Any]
    inputs: tuple[Place, ...]
    output: Place

    def run(self, backend: Backend, values: Values) -> None:
        values[self.output] = self.function(*[values[k] for k in self.inputs])

    def reads(self) -> tuple[Place, ...]:
        return self.inputs

    def writes(self) -> tuple[Place, ...]:
        return (self.output,)


Instruction = Forward | Backward | Pooled | Call


Form = tuple[tuple[int, ...], str] | None
"""The shape of an array and the character of its dtype; None for another value."""


class Program:
    """The instructions of a step, for inputs of one form.

    Args:
        backend: the backend that computes.
        constants: values by their place; those of the inputs come first and are None.
        instructions: what is run, in order.
        results: the places of the results.
        made: the places of the constants that the step makes itself, from no tensor.
        forms: the form of each value, on NumPy.
    """

    def __init__(self, backend: Backend, constants: Values, instructions: Sequence[Instruction],
                 results: tuple[Place, ...], made: Set[Place] = frozenset(), forms: Sequence[Form] = ()) -> None:
        self.backend, self.constants, self.results, self.made = backend, constants, results, made
        self.instructions, self.forms = instructions, forms
        last_use = {place: k for k, one in enumerate(instructions) for place in (*one.writes(), *one.reads())}
        freed: list[list[Place]] = [[] for _ in instructions]
        for place, k in last_use.items():
            if place not in results and constants[place] is None:
                freed[k].append(place)
        self._steps = [(one.run, tuple(places)) for one, places in zip(instructions, freed, strict=True)]

    @property
    def unchanged(self) -> set[Place]:
        """The numbers of the inputs that are results as they come."""
        written = {place for one in self.instructions for place in one.writes()}
        return set(self.results) - written

    def run(self, *natives: Array) -> list[Array]:
        """The results of the step. A value is dropped after its last use, so that memory does not grow."""
        values = self.constants.copy()
        values[:len(natives)] = natives
        for run, freed in self._steps:
            run(self.backend, values)
            for place in freed:
                values[place] = None
        return [values[place] for place in self.results]

    def difference(self, second: Program) -> str | None:
        """The difference of another record of the step; None if both run the same rules on the same values.

        A constant that the step did not make was there before it, so both records have the same object. Equal values
        prove nothing: they may be computed from arguments that were equal.
        """
        if not (self.results == second.results and len(self.constants) == len(second.constants)
                and self.made == second.made and _same(self.instructions, second.instructions)):
            return "its calls run different operators"
        for place, (a, b) in enumerate(zip(self.constants, second.constants, strict=True)):
            if not (_equal(self.backend, a, b) if place in self.made else _is_one(a, b)):
                return (f"it computes with an array of shape {np.shape(a)} that is no argument and another one at each "
                        "call; give it as an argument")
        return None


rewrites: dict[str, Callable[[Program], Program]] = {}
"""By backend, the function that makes a program with the same results that takes less time."""


def _same(a: Any, b: Any) -> bool:
    """True if two lists of instructions are equal; what cannot be compared is not."""
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays among the attributes
        return False


def _is_one(a: Any, b: Any) -> bool:
    """True if two constants are one object, or numbers of Python with one value."""
    if isinstance(a, int | float):
        return type(a) is type(b) and repr(a) == repr(b)  # 0.0 is not -0.0, and NaN is NaN
    return a is b and not isinstance(a, np.bool_)  # NumPy has one object for all that is True


def _equal(backend: Backend, a: Array, b: Array) -> bool:
    """True if two arrays have the same shape, dtype and bits."""
    return bool(a.shape == b.shape and a.dtype == b.dtype
                and backend.to_numpy(a).tobytes() == backend.to_numpy(b).tobytes())
