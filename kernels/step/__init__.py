"""Compiled steps on the CPU: a table of bound launches in the place of the rules of a program, see `table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duoln.backends.protocol import Array
from duoln.core.step.program import Program, binders
from duoln.core.step.symbol import NotBound
from duoln.kernels.step.table import Table


def bind_program(program: Program, natives: Sequence[Array], plain: Callable[..., list[Array]]) -> Table | None:
    """The table of a program for arrays like these; None where there can be none."""
    try:
        return Table(program, natives, plain)
    except NotBound:
        return None


def attach(backend: str) -> None:
    """Bind the steps of NumPy's arrays."""
    if backend == "numpy":
        binders["numpy"] = bind_program
