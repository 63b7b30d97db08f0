"""A check of every operator for values that are not finite: it shows which operator made a step diverge."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import REALS, Array, Backend
from duoln.core.op import Op, each_rule
from duoln.core.rule import Rule
from duoln.errors import NotFiniteError


def watched() -> contextlib.AbstractContextManager[None]:
    """Within this context all inputs, outputs and gradients of operators are checked. Slow; not for compiled steps.

    Raises:
        NotFiniteError: a value is not finite. The message names the first operator with such a value, its role (input,
            output or gradient), the shape, and the position of the value.
    """
    return each_rule(_checking_rule)


def _checking_rule(op: Op[..., Any], rule: Rule) -> Rule:
    """The same rule, which checks every value."""
    name = f"[{op.name}] rule '{rule.name}'"

    def forward(be: Backend, /, *arrays: Array | None, **attrs: Any) -> tuple[Any, Any]:
        _check_finite(be, name, "input", arrays)
        out, saved = rule.forward(be, *arrays, **attrs)
        _check_finite(be, name, "output", out if isinstance(out, tuple) else (out,))
        return out, saved

    def vjp(be: Backend, saved: Any, gout: Any, needs: Sequence[bool]) -> Sequence[Array | None]:
        _check_finite(be, name, "gradient of output", gout if isinstance(gout, tuple) else (gout,))
        assert rule.vjp is not None
        gradients = rule.vjp(be, saved, gout, needs)
        _check_finite(be, name, "gradient of input", gradients)
        return gradients

    def pooled(argument: int, function: Callable[..., Array]) -> Callable[..., Array]:
        def of_all_uses(be: Backend, uses: Any) -> Array:
            gradient = function(be, uses)
            _check_finite(be, name, f"gradient of all uses of input {argument}, part", (gradient,))
            return gradient

        return of_all_uses

    return dataclasses.replace(rule, forward=forward, vjp=None if rule.vjp is None else vjp,
                               pooled={i: pooled(i, f) for i, f in rule.pooled.items()})


def _check_finite(be: Backend, name: str, role: str, arrays: Sequence[Any]) -> None:
    for k, array in enumerate(arrays):
        if array is None or isinstance(array, int | float) or be.dtype(array) not in REALS:
            continue
        values = be.to_numpy(array)
        bad = np.flatnonzero(~np.isfinite(values.reshape(-1)))
        if len(bad):
            where = tuple(int(i) for i in np.unravel_index(bad[0], values.shape))
            raise NotFiniteError(f"{name}: {role} {k} of shape {values.shape} has {values[where]} at {where} "
                                 f"({len(bad)} of {values.size} values are not finite)")
