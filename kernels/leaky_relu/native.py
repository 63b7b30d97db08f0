"""Leaky ReLU on the CPU, compiled: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.ops import leaky_relu

_FILE = "leaky_relu/leaky_relu.cpp"

_forward_pass = native.Function(_FILE, "leaky_relu_forward", "x: real[1], y: real[1], size: int64, slope: float64, "
                                                             "threads: int32")
_backward_pass = native.Function(_FILE, "leaky_relu_backward", "kept: real[1], dy: real[1], dx: real[1], size: int64, "
                                                               "slope: float64, threads: int32")


class _Saved(NamedTuple):
    kept: Array
    """Values that are positive where x is: with a slope above 0 the results, which the next operator keeps as well."""
    slope: float


def _supports(be: Backend, x: Array, slope: float) -> str | None:
    return native.failure(_FILE) if x.size else "there are no values"


def _forward(be: Backend, x: Array, slope: float) -> tuple[Array, _Saved]:
    flat = np.ascontiguousarray(x).reshape(-1)
    y = np.empty_like(flat)
    _forward_pass(flat, y, flat.size, slope, native.threads_for(flat.nbytes))
    return y.reshape(x.shape), _Saved(y if slope > 0 else flat, slope)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    dy = np.ascontiguousarray(gout).reshape(-1)
    dx = np.empty_like(dy)
    _backward_pass(saved.kept, dy, dx, dy.size, saved.slope, native.threads_for(dy.nbytes))
    return (dx.reshape(gout.shape),)


def attach() -> None:
    """Add the rule to `leaky_relu`."""
    leaky_relu.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
