"""The limit of a CPU's memory: a copy with streaming stores, with all threads.

A library's own copy reads what it overwrites, so it moves half as much again as it says.
"""

from __future__ import annotations

import numpy as np

from duoln.kernels import native
from duoln.kernels.elementwise.engine import ENGINE, TEXT, formula_function

copy = formula_function("copy")
"""A copy of a contiguous array; one of 8 MiB or more is written with streaming stores."""


def refusal() -> str | None:
    """The reason why there is no such copy of float32 here; None if there is one."""
    return native.refusal(ENGINE, np.dtype(np.float32)) or native.refusal(TEXT, np.dtype(np.float32))
