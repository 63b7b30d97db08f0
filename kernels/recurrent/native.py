"""The compiled rules of the recurrent operators on the CPU: walks, and single time steps, which are tried first."""

from __future__ import annotations

from duoln.kernels.recurrent import native_cell, native_step
from duoln.kernels.recurrent.native_walk import rules


def attach() -> None:
    """Add the rules to `rnn`, `lstm` and `gru`, and those of single steps."""
    walks = rules()
    for operator, rule in walks:
        operator.add(rule, backend="numpy")
    native_cell.attach()
    for operator, rule in walks:
        operator.add(native_step.rule(operator.name, rule), backend="numpy")
