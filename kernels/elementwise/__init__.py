"""Elementwise operators and reductions of whole arrays on the CPU, compiled: each is one pass of the engine."""

from __future__ import annotations

from functools import partial
from typing import Any

from duoln import ops
from duoln.core import Op
from duoln.core.step.program import rewrites
from duoln.kernels.elementwise import reductions
from duoln.kernels.elementwise.engine import FORMULAS
from duoln.kernels.elementwise.fusing import fuse
from duoln.kernels.elementwise.passes import Passes


def operators() -> list[Op[..., Any]]:
    """The operators that have formulas."""
    return [op for name in FORMULAS if isinstance(op := getattr(ops, name, None), Op) and op.has_rules]


def attach(backend: str) -> None:
    """Add the rules, and the chains of compiled steps."""
    if backend != "numpy":
        return
    reductions.attach()
    rules = {}
    for op in operators():
        passes = Passes(op)
        rules[passes.rule] = passes
        op.add(passes.rule, backend="numpy")
    rewrites["numpy"] = partial(fuse, rules=rules)
