"""The rules of the elementwise operators that `formulas.cpp` has: one pass for the value, one for the gradients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule
from duoln.core.call import attributes
from duoln.kernels import host, native
from duoln.kernels.elementwise.engine import ENGINE, FORMULAS, SUM, TEXT, Chain, formula_function
from duoln.kernels.native.loading import NAMES
from duoln.ops.common import unbroadcast

LEAST_VALUES = 1 << 14
"""Values below which a function of NumPy takes less time than a pass."""
_SMALL = 1 << 8
"""Values below which an operator of several functions of NumPy takes less time."""


class Saved(NamedTuple):
    """The values that the gradients read."""

    of: OneFormula
    values: dict[str, Array | float]
    """By the names in formulas: arguments of the operator, and its result r."""
    shapes: tuple[tuple[int, ...] | None, ...]
    """The shape of each argument; None for a number."""


class OneFormula:
    """The formula of an operator's value, and those of its gradients.

    Args:
        name: the formula of the value.
        arguments: the operator's arguments.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        formula = FORMULAS[name]
        self.name, self.attributes = name, formula.arguments[len(arguments):]
        self.value = formula_function(name, self.attributes)
        self.is_test = formula.is_test
        self.slopes = [FORMULAS.get(f"{name}_{argument}") for argument in arguments]
        self.reads = [set(slope.arguments) - {"g"} if slope else set[str]() for slope in self.slopes]
        self.arguments = formula.arguments
        places = {argument: k for k, argument in enumerate(formula.arguments)} | {"r": -1}
        self.kept = [(k, name, places[name]) for k, reads in enumerate(self.reads) for name in sorted(reads)]
        """For each array argument what its gradient reads: a name and its place among the arguments; -1 for r."""

    def gradient(self, place: int, values: dict[str, Array | float], gout: Array) -> Array:
        """The gradient of an argument that was not broadcast."""
        slope = self.slopes[place]
        assert slope
        function = of_slope(slope.name, self.attributes)
        return function(*[gout if name == "g" else values[name] for name in slope.arguments])

    def chain(self, places: Sequence[int]) -> tuple[Chain, list[str]]:
        """The gradients of some arguments in one pass, and the names of the values that it takes before g."""
        names = sorted(set().union(*[self.reads[k] for k in places]))
        at = {name: k for k, name in enumerate((*names, "g"))}
        steps = [(slope.name, tuple([at[name] for name in slope.arguments]))
                 for slope in (self.slopes[k] for k in places) if slope]
        return Chain(len(at), steps, range(len(at), len(at) + len(steps))), names


class Passes:
    """The rule of an elementwise operator by its formulas.

    Args:
        op: the operator. Where an attribute is a choice, the choice is a part of the formula's name.
    """

    def __init__(self, op: Op[..., Any]) -> None:
        self.attributes = attributes(op.function)
        given = {each.name for each in self.attributes}
        self.arguments = [name for name in inspect.signature(op.function).parameters if name not in given]
        self._choice = next((each.name for each in self.attributes if type(each.kind) is tuple), None)
        self._name = op.name
        self.cpp_file = TEXT
        """See native.foresight."""
        self._of: dict[str | None, OneFormula] = {}
        self._only = None if self._choice else self.of({})
        self._chains: dict[Any, tuple[Chain, list[str]]] = {}
        least = LEAST_VALUES if hasattr(np, op.name) else _SMALL
        vjp = None if FORMULAS[op.name].is_test else self._vjp
        self.rule = Rule("compiled", self._forward, vjp, self._supports, least=least)
        """The rule."""

    def of(self, attrs: dict[str, Any]) -> OneFormula:
        """The formula for these attributes."""
        choice = attrs[self._choice] if self._choice else None
        if choice not in self._of:
            name = f"{self._name}_{choice}"
            self._of[choice] = OneFormula(name if choice and name in FORMULAS else self._name, self.arguments)
        return self._of[choice]

    def _supports(self, be: Backend, *arrays: Array | float, **attrs: Any) -> str | None:
        real = None
        for name, x in zip(self.arguments, arrays, strict=True):
            if isinstance(x, np.ndarray | np.generic):
                if not x.size:
                    return "there are no values"
                if x.dtype.char in NAMES:
                    real = x.dtype
                elif name != "condition":
                    return f"it is for {' and '.join(NAMES.values())}, not {x.dtype}"
        if real is None:
            return "there is no array of floats"
        if attrs.get("slope", 0.0) < 0:  # the result, which the next operator keeps as well, has the sign of x
            return "it is for slopes of at least 0"
        return native.refusal(TEXT, real) or native.refusal(ENGINE, real)

    def _forward(self, be: Backend, *arrays: Array | float, **attrs: Any) -> tuple[Array, Saved | None]:
        of = self._only or self.of(attrs)
        given = (*arrays, *[attrs[name] for name in of.attributes]) if of.attributes else arrays
        y = of.value(*given)
        if of.is_test:
            return y, None
        shapes = tuple([getattr(x, "shape", None) for x in arrays])
        kept = {name: y if at < 0 else given[at] for k, name, at in of.kept if shapes[k] is not None}
        return y, Saved(of, kept, shapes)

    def _vjp(self, be: Backend, saved: Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
        """Each gradient is summed over the axes along which its argument was broadcast."""
        of, values, shapes = saved
        if len(needs) == 1 and of.slopes[0] and of.slopes[0].value != "g":
            return [of.gradient(0, values, gout)]
        gradients: list[Array | None] = [None] * len(needs)
        whole = []
        for k, (slope, shape, need) in enumerate(zip(of.slopes, shapes, needs, strict=True)):
            if not need or slope is None or shape is None:
                continue
            if slope.value == "g":
                gradients[k] = gout if shape == gout.shape else sum_broadcast_axes(be, shape, gout.shape, None, gout)
            elif shape == gout.shape:
                whole.append(k)
            else:
                gradients[k] = sum_broadcast_axes(be, shape, gout.shape, slope.name,
                                       *[gout if name == "g" else values[name] for name in slope.arguments])
        if len(whole) == 1 or gout.nbytes < host.PARALLEL_BYTES:  # what both gradients read is in cache
            for k in whole:
                gradients[k] = of.gradient(k, values, gout)
        elif whole:
            if (of, *whole) not in self._chains:
                self._chains[of, *whole] = of.chain(whole)
            chain, names = self._chains[of, *whole]
            for k, gradient in zip(whole, chain(*[values[name] for name in names], gout), strict=True):
                gradients[k] = gradient
        return gradients


of_slope = cache(formula_function)
"""The function of a gradient's formula."""


_chain_of = cache(Chain.of)
PLAIN = Chain(1, [], ())
"""The chain of no formula."""


def sum_broadcast_axes(be: Backend, shape: tuple[int, ...], whole: tuple[int, ...], formula: str | None,
            *given: Array | float) -> Array:
    """The values, of shape `whole`, of a formula or one array, summed over the axes along which `shape` was broadcast.

    The values themselves are not written where the axes are neighbours.
    """
    over = _broadcast_axes(shape, whole)
    if over is None:
        return unbroadcast(be, given[0] if formula is None else of_slope(formula)(*given), shape)
    chain = PLAIN if formula is None else _chain_of(formula)
    return reduce_axes(SUM, chain, whole, over, *given)[0].reshape(shape)


@lru_cache
def _broadcast_axes(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes along which `shape` is broadcast, if there are any, and they are neighbours."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    over = tuple([k for k, (mine, all_of) in enumerate(zip(padded, whole, strict=True)) if mine != all_of])
    return over if over and are_neighbours(whole, over) else None


def are_neighbours(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """True if no other axis with several values is between these axes."""
    return all(shape[k] == 1 for k in range(axes[0], axes[-1]) if k not in axes)


def reduce_axes(how: int, chain: Chain, shape: Sequence[int], axes: Sequence[int],
                 *given: Array | float) -> tuple[np.ndarray, list[Array]]:
    """The sums, or greatest or least, of a chain's values over neighbouring axes of their shape, in C order, and the
    chain's results.
    """
    matrices, length = prod(shape[:axes[0]]), prod(shape[axes[0]:axes[-1] + 1])
    if matrices * length == prod(shape):
        return chain.of_rows(how, length, *given)
    return chain.of_columns(how, matrices, length, *given)
