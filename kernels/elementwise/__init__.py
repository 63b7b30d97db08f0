"""Elementwise operators and reductions of whole arrays on the CPU, compiled: each is one pass of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Op
from duoln.core.step.program import rewrites
from duoln.kernels import host
from duoln.kernels.elementwise import reductions
from duoln.kernels.elementwise.engine import FORMULAS
from duoln.kernels.elementwise.fusing import fuse
from duoln.kernels.elementwise.passes import Passes

_SPLIT = ops.split.rules("numpy")[-1]


def _split_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
               needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of parts that already lie side by side in one array are not copied together.

    Those of attention's queries, keys and values do, where one product made all three.
    """
    _, _, axis = saved
    whole = host.side_by_side(gouts, axis)
    if whole is not None:
        return (whole,)
    assert _SPLIT.vjp is not None
    return tuple(_SPLIT.vjp(be, saved, gouts, needs))


def operators() -> list[Op[..., Any]]:
    """The operators that have formulas."""
    return [op for name in FORMULAS if isinstance(op := getattr(ops, name, None), Op) and op.has_rules]


def attach(backend: str) -> None:
    """Add the rules, and the chains of compiled steps."""
    if backend != "numpy":
        return
    reductions.attach()
    ops.split.add(replace(_SPLIT, name="side by side", vjp=_split_vjp), backend="numpy")
    rules = {}
    for op in operators():
        passes = Passes(op)
        rules[passes.rule] = passes
        op.add(passes.rule, backend="numpy")
    rewrites["numpy"] = partial(fuse, rules=rules)
