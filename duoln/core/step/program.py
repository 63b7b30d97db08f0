"""A program: a compiled step as the list of the rules that it runs, for inputs of one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.rule import Rule

Place = int
"""The index of a value of a program: an array, or what a rule saved."""
Values = list[Any]
Keep = Callable[[Any], str]
"""A function that gives an object a name in a program's text, and returns that name."""


def names(places: Iterable[Place]) -> str:
    """The values at some places in a program's text, with a comma behind each."""
    return "".join([f"v{place}, " for place in places])


class FunctionText:
    """A function of straight-line Python, whose lines are added one by one; `known` are names in it."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self._known = known

    def name_for(self, x: Any) -> str:
        """A name for an object."""
        name = f"kept{len(self._known)}"
        self._known[name] = x
        return name

    def function(self, arguments: str, result: str, file: str) -> Callable[..., Any]:
        """The function, from its arguments to an expression; `file` stands in tracebacks."""
        text = "\n    ".join([f"def function({arguments}):", *self.lines, f"return {result}"])
        exec(compile(text, file, "exec"), self._known)
        function: Callable[..., Any] = self._known.pop("function")  # it keeps what is known, which need not keep it too
        return function


class Forward(NamedTuple):
    """A rule computes its value."""

    rule: Rule
    attrs: dict[str, Any]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    is_tuple: bool
    saved: Place

    def text(self, keep: Keep) -> str:
        given = names(self.inputs) + ", ".join([f"{name}={keep(value)}" for name, value in self.attrs.items()])
        out = f"[{names(self.outputs)}]" if self.is_tuple else f"v{self.outputs[0]}"
        return f"{out}, v{self.saved} = {keep(self.rule.forward)}(backend, {given})"

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

    def text(self, keep: Keep) -> str:
        given = f"v{self.saved}, {_gout(self.gouts, self.is_tuple)}, {self.needs}"
        return f"[{names(self.outputs)}] = {keep(self.rule.vjp)}(backend, {given})"

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

    def text(self, keep: Keep) -> str:
        uses = ", ".join([f"(v{saved}, {_gout(gouts, is_tuple)})" for saved, gouts, is_tuple in self.uses])
        return f"v{self.output} = {keep(self.rule.pooled[self.argument])}(backend, [{uses}])"

    def reads(self) -> tuple[Place, ...]:
        return tuple([place for saved, gouts, _ in self.uses for place in (saved, *gouts)])

    def writes(self) -> tuple[Place, ...]:
        return (self.output,)


class Call(NamedTuple):
    """A function of arrays that is no rule, see `repeated`."""

    function: Callable[..., Any]
    inputs: tuple[Place, ...]
    output: Place

    def text(self, keep: Keep) -> str:
        return f"v{self.output} = {keep(self.function)}({names(self.inputs)})"

    def reads(self) -> tuple[Place, ...]:
        return self.inputs

    def writes(self) -> tuple[Place, ...]:
        return (self.output,)


def _gout(gouts: tuple[Place, ...], is_tuple: bool) -> str:
    return f"({names(gouts)})" if is_tuple else f"v{gouts[0]}"


Instruction = Forward | Backward | Pooled | Call
"""Each has a `text`, the statement that computes its values, and the places that this `reads` and `writes`."""


class Form(NamedTuple):
    """An array, but for its values."""

    shape: tuple[int, ...]
    char: str
    """The character of its dtype."""
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """The instructions of a step, for inputs of one form.

    Attributes:
        backend: the backend that computes.
        inputs: the number of inputs, whose places come first.
        constants: values by their place; None for the other places.
        instructions: what is run, in order.
        results: the places of the results.
        made: the places of the constants that the step makes itself, from no tensor.
        forms: the form of each value, on NumPy; None for one that is no array.
    """

    backend: Backend
    inputs: int
    constants: Values
    instructions: Sequence[Instruction]
    results: tuple[Place, ...]
    made: Set[Place]
    forms: Sequence[Form | None]

    @property
    def unchanged(self) -> set[Place]:
        """The numbers of the inputs that are results as they come."""
        written = {place for one in self.instructions for place in one.writes()}
        return set(self.results) - written

    def function(self) -> Callable[..., list[Array]]:
        """The function from the inputs to the results: straight-line Python, a statement for each instruction.

        A value is dropped after its last use, so that memory does not grow.
        """
        text = FunctionText({"backend": self.backend, **{f"v{place}": x for place, x in enumerate(self.constants)}})
        last_use = {place: k for k, one in enumerate(self.instructions) for place in (*one.writes(), *one.reads())}
        freed: list[list[Place]] = [[] for _ in self.instructions]
        written = {place for one in self.instructions for place in one.writes()}
        for place in written.difference(self.results):
            freed[last_use[place]].append(place)
        for one, places in zip(self.instructions, freed, strict=True):
            text.lines += [one.text(text.name_for), *([f"del {names(places)}"] if places else [])]
        return text.function(names(range(self.inputs)), f"[{names(self.results)}]", "<compiled step>")

    def difference(self, second: Program) -> str | None:
        """The difference of another record of the step; None if both run the same rules on the same values.

        A constant that the step did not make was there before it, so both records have the same object. Equal values
        prove nothing: they may be computed from arguments that were equal.
        """
        if not (self.results == second.results and len(self.constants) == len(second.constants)
                and self.made == second.made and _same_instructions(self.instructions, second.instructions)):
            return "its calls run different operators"
        for place, (a, b) in enumerate(zip(self.constants, second.constants, strict=True)):
            if not (_same_bits(self.backend, a, b) if place in self.made else _same_constant(a, b)):
                return (f"it computes with an array of shape {np.shape(a)} that is no argument and another one at each "
                        "call; give it as an argument")
        return None


rewrites: dict[str, Callable[[Program], Program]] = {}
"""By backend, the function that makes a program with the same results that takes less time."""


binders: dict[str, Callable[[Program, Sequence[Array], Callable[..., list[Array]]], Any]] = {}
"""By backend, the function that binds a program to memory, for arrays like some, with a function that runs it as it is.
The result is called as that function, or None; see `kernels.step`."""


def _same_instructions(a: Any, b: Any) -> bool:
    """True if two lists of instructions are equal; what cannot be compared is not."""
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays among the attributes
        return False


def _same_constant(a: Any, b: Any) -> bool:
    """True if two constants are one object, or numbers of Python with one value."""
    if isinstance(a, int | float):
        return type(a) is type(b) and repr(a) == repr(b)  # 0.0 is not -0.0, and NaN is NaN
    return a is b and not isinstance(a, np.bool_)  # NumPy has one object for all that is True


def _same_bits(backend: Backend, a: Array, b: Array) -> bool:
    """True if two arrays have the same shape, dtype and bits."""
    return bool(a.shape == b.shape and a.dtype == b.dtype
                and backend.to_numpy(a).tobytes() == backend.to_numpy(b).tobytes())


# Gradients of matrices that stay in two factors ----------------------------------------------------------
# A matrix that multiplied a few rows has the gradient `left.T @ right`, which is as large as the matrix. To write it
# and to read it once takes a fifth of the time of an update. A compiled step leaves such a gradient in its factors, if
# only one rule reads it and that rule takes factors.

class Factors(NamedTuple):
    """The gradient of a matrix (n, m): left (rows, n), right (rows, m)."""

    left: Array
    right: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.left.T @ self.right, dtype)


def keep_factors(program: Program) -> Program:
    """The same program; gradients that can stay in their factors do."""
    uses = Counter([*program.results, *(place for one in program.instructions for place in one.reads())])
    taken = {place for one in program.instructions if isinstance(one, Forward) and one.rule.takes_factors
             for place in one.inputs if uses[place] == 1}
    kept: list[Instruction] = []
    for one in program.instructions:
        factored = ([k for k in one.rule.factors if one.outputs[k] in taken]
                    if isinstance(one, Backward) and not one.is_tuple else [])
        kept += _split(one, factored, program.backend) if isinstance(one, Backward) and factored else [one]
    return replace(program, instructions=kept)


def _split(one: Backward, factored: Sequence[int], backend: Backend) -> Iterator[Instruction]:
    """The gradients that are written out, and the factors of the others."""
    yield one._replace(needs=tuple([need and k not in factored for k, need in enumerate(one.needs)]))
    for k in factored:
        yield Call(partial(_factors, one.rule.factors[k], backend), (one.saved, *one.gouts), one.outputs[k])


def is_factored(one: Instruction) -> bool:
    """True if an instruction gives factors in the place of an array."""
    return isinstance(one, Call) and isinstance(one.function, partial) and one.function.func is _factors


def _factors(of_rule: Callable[..., tuple[Array, Array]], backend: Backend, saved: Any, gout: Array) -> Factors:
    return Factors(*of_rule(backend, saved, gout))
