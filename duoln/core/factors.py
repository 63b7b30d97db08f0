"""Gradients of matrices that stay in two factors until they are used.

A matrix that multiplied a few rows has the gradient `left.T @ right`, which is as large as the matrix. To write it and
to read it once takes a fifth of the time of an update. A compiled step leaves such a gradient in its factors, if only
one rule reads it and that rule takes factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core.step.program import Backward, Call, Forward, Instruction, Program


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
