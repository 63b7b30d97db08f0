"""The limit of a CPU's memory: a copy with streaming stores, with all threads.

A library's own copy reads what it overwrites, so it moves half as much again as it says.
"""

from __future__ import annotations

import numpy as np

from duoln.kernels import host, native

_FILE = "elementwise/elementwise.cpp"
_copy = native.Function(_FILE, "copy", "x: real[1], out: real[1], size: int64, threads: int32")


def refusal() -> str | None:
    """The reason why there is no such copy of float32 here; None if there is one."""
    return native.refusal(_FILE, np.dtype(np.float32))


def copy(x: np.ndarray) -> np.ndarray:
    """A copy of a contiguous array; one of 8 MiB or more is written with streaming stores."""
    out = host.empty_like(x)
    _copy(x.reshape(-1), out.reshape(-1), x.size, native.threads_for(x.nbytes))
    return out
