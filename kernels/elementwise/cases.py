"""The cases of elementwise operators, which follow from their declarations; of reductions; and of parts of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from duoln.core import Op
from duoln.core.call import Attribute
from duoln.kernels.elementwise import operators
from duoln.kernels.elementwise.passes import LEAST_VALUES, Passes
from duoln.kernels.registry import Arrays, Case, drawn, floats

_OF_SIZES = ("log", "log1p", "rsqrt", "sqrt")
"""The operators that are NaN for some values below 0."""
_SMALL = ((257,), (2, 3, 47))
_LARGE = ((LEAST_VALUES,), (2, 129, 67), (257, 64))


def cases() -> Iterator[Case]:
    """Arrays of one, two and three axes, as many as the compiled rules take."""
    for op in operators():
        passes = Passes(op)
        for shape in _LARGE if passes.rule.least >= LEAST_VALUES else (*_SMALL, (257, 64)):
            for attrs in _attributes(passes.attributes):
                layouts = shape == (2, 129, 67) or prod(shape) < 300
                yield _elementwise_case(op, passes, [shape] * len(passes.arguments), attrs)._replace(layouts=layouts)
        if op.spec is None:
            for second in ((67,), (129, 1), (2, 1, 67), ()):
                yield _elementwise_case(op, passes, [(2, 129, 67)] * (len(passes.arguments) - 1) + [second], {})
    for shape in ((65536,), (5, 7, 2003), (257, 263), (2, 129, 67)):
        for axis in sorted({(0,), (len(shape) - 1,), tuple(range(len(shape))), tuple(range(len(shape)))[1:] or (0,)}):
            attrs = {"axis": axis, "keepdims": False}
            for name in ("sum", "max", "min"):
                yield Case(name, f"{shape} over {axis}", drawn(shape, seed=shape), attrs, prod(shape[k] for k in axis),
                           layouts=shape == (2, 129, 67))
        yield Case("cumulative_sum", f"{shape}", drawn(shape, seed=shape), {"axis": len(shape) - 1}, shape[-1],
                   layouts=shape == (2, 129, 67))
    for shape, sizes, along in (((2, 6), (2, 2, 2), 1), ((3, 4), (1, 2), 0), ((2, 3, 4), (1, 0, 3), 2),
                                ((5,), (5,), 0)):
        yield Case("split", f"{shape} into {sizes}", drawn(shape, seed=shape), {"sizes": sizes, "axis": along}, 1,
                   layouts=True)


def _attributes(known: Sequence[Attribute]) -> list[Mapping[str, Any]]:
    """A number for each attribute that is one, and each choice of one that is a choice."""
    attrs: dict[str, Any] = {each.name: 0.7 for each in known if type(each.kind) is not tuple}
    choice = next((each for each in known if type(each.kind) is tuple), None)
    return [attrs | {choice.name: value} for value in cast(Any, choice.kind)] if choice else [attrs]


def _elementwise_case(op: Op[..., Any], passes: Passes, shapes: Sequence[Sequence[int]],
                      attrs: Mapping[str, Any]) -> Case:
    """Normal values; their sizes where the operator has no value below 0."""
    def arrays() -> Arrays:
        rng = np.random.default_rng(shapes[0])
        return [rng.random(shape) < 0.6 if name == "condition" else in_domain(floats(rng, *shape))
                for name, shape in zip(passes.arguments, shapes, strict=True)]

    def in_domain(x: np.ndarray) -> np.ndarray:
        return np.abs(x) + np.float32(0.1) if op.name in _OF_SIZES else x

    label = " and ".join([*dict.fromkeys(str(tuple(shape)) for shape in shapes), *map(str, attrs.values())])
    return Case(op.name, label, arrays, attrs, prod(shapes[0]) // (prod(shapes[-1]) or 1))
