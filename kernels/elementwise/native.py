"""`where` on the CPU, compiled: NumPy's own loop takes a branch at each value, which a random condition makes slow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import where

_FILE = "where/where.cpp"
_LEAST = 1 << 12
"""Values below which a call of NumPy's costs less."""

_choose = native.Function(_FILE, "where", "condition: bool[1], x: real[1]?, y: real[1]?, out: real[1], size: int64, "
                                          "x_number: float64, y_number: float64, threads: int32")


def _supports(be: Backend, condition: Array, x: Array | float, y: Array | float) -> str | None:
    arrays = [a for a in (x, y) if isinstance(a, np.ndarray)]
    if any(a.shape != condition.shape or a.dtype.kind != "f" or a.itemsize < 4 for a in arrays):
        return f"it is for floats of the shape {condition.shape} of the condition"
    if condition.size < _LEAST:
        return f"it is for at least {_LEAST} values"
    return native.failure(_FILE)


def _run(condition: Array, x: Array | float, y: Array | float) -> Array:
    flat = [np.ascontiguousarray(a).reshape(-1) if isinstance(a, np.ndarray) else None for a in (x, y)]
    numbers = [0.0 if isinstance(a, np.ndarray) else float(a) for a in (x, y)]
    out = host.empty(condition.shape, next(a for a in flat if a is not None).dtype)
    _choose(np.ascontiguousarray(condition).reshape(-1), *flat, out.reshape(-1), condition.size, *numbers,
            native.threads_for(out.nbytes))
    return out


def _forward(be: Backend, condition: Array, x: Array | float, y: Array | float) -> tuple[Array, Array]:
    return _run(condition, x, y), condition


def _vjp(be: Backend, condition: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return None, _run(condition, gout, 0.0) if needs[1] else None, _run(condition, 0.0, gout) if needs[2] else None


def attach() -> None:
    """Add the rule to `where`."""
    where.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
