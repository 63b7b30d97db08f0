"""The tape: the record of one call. The gradient reads it once in reverse order and then drops it.

A gradient makes a tape for its call and gives each parameter a place on it. Every op with an argument on the tape adds
a record. The tape holds native arrays only.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core.arguments import described
from duoln.core.rule import Rule
from duoln.core.step.repeated import repeated
from duoln.errors import GradientError


class Node(NamedTuple):
    """A tensor's place on a tape."""

    tape: Tape
    place: int


class Record(NamedTuple):
    """One op that ran: its rule, what the rule saved, and the places of its inputs and outputs."""

    rule: Rule
    saved: Any
    inputs: Sequence[int | None]
    outputs: Sequence[int]
    is_tuple: bool


class Tape:
    """The records of one call."""

    __slots__ = ("closed", "records", "uses")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.uses: list[int] = []
        self.closed = False

    def new_place(self) -> Node:
        """A new place, for a parameter or an output."""
        self.uses.append(0)
        return Node(self, len(self.uses) - 1)

    def close(self) -> None:
        """End the call: tensors that are still on the tape become constants, and the records are dropped."""
        self.closed = True
        self.records.clear()

    @np.errstate(under="ignore")  # as `Op.apply`
    def backward(self, backend: Backend, seeds: dict[int, Array], keep: bool = False) -> list[Array | None]:
        """The gradient at every place, from the gradients of some outputs.

        Each record is freed once it is read, unless `keep` is set: then the tape can be read again.
        """
        gradients: list[Array | None] = [None] * len(self.uses)
        stored: dict[int, str] = {}
        """The dtype of 16 bits of a gradient whose sum is in float32 until it is read."""
        pools: dict[int, dict[tuple[Rule, int], list[tuple[Any, Any]]]] = {}

        def accumulate(index: int, gradient: Array | None) -> None:
            if gradient is None:
                return
            before = gradients[index]
            if before is not None:
                dtype = backend.dtype(gradient)
                if dtype in STORAGE:
                    gradient = repeated(backend.astype, gradient, "float32")
                    if index not in stored:
                        stored[index], before = dtype, repeated(backend.astype, before, "float32")
                gradient = repeated(operator.add, before, gradient)
            gradients[index] = gradient

        def finished(index: int) -> Array | None:
            gradient = gradients[index]
            return gradient if index not in stored else repeated(backend.astype, gradient, stored.pop(index))

        def flush(index: int) -> None:
            for (rule, argument), uses in pools.pop(index, {}).items():
                accumulate(index, rule.pooled[argument](backend, uses))

        for index, seed in seeds.items():
            accumulate(index, seed)
        for position in reversed(range(len(self.records))):
            rule, saved, inputs, outputs, is_tuple = self.records[position]
            if not keep:
                self.records.pop()
            for index in outputs:
                if index in pools:
                    flush(index)
            gouts = tuple([finished(index) if index in stored else gradients[index] for index in outputs])
            if not any([g is not None for g in gouts]):
                continue
            for index in outputs:
                gradients[index] = None  # no later record reads it
            gout = gouts if is_tuple else gouts[0]
            needs = tuple([index is not None for index in inputs])
            for i in rule.pooled:  # the gradient of a weight that T time steps use costs one product, not T
                place = inputs[i] if i < len(inputs) else None
                if place is not None and self.uses[place] > 1:
                    needs = (*needs[:i], False, *needs[i + 1:])
                    pools.setdefault(place, {}).setdefault((rule, i), []).append((saved, gout))
            if True in needs:
                assert rule.vjp is not None
                results = rule.vjp(backend, saved, gout, needs)
                if not isinstance(results, tuple | list) or len(results) != len(needs):
                    actual = f"a tuple of {len(results)}" if isinstance(results, tuple) else described(results)
                    raise GradientError(f"[vjp] rule '{rule.name}': expected a tuple of {len(needs)} gradients, one "
                                        f"for each array, found {actual}")
                for target, need, gradient in zip(inputs, needs, results, strict=True):
                    if not need or target is None:
                        continue
                    if gradients[target] is None and target not in stored:
                        gradients[target] = gradient
                    else:
                        accumulate(target, gradient)
        for index in list(pools):
            flush(index)
        return [finished(index) for index in range(len(gradients))] if stored else gradients
