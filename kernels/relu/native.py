"""ReLU and leaky ReLU on the CPU, compiled: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import leaky_relu, relu

_FILE = "relu/relu.cpp"

_relu = native.Function(_FILE, "relu_forward", "x: real[1], y: real[1], size: int64, threads: int32")
_relu_gradient = native.Function(_FILE, "relu_backward", "kept: real[1], dy: real[1], dx: real[1], size: int64, "
                                                         "threads: int32")
_leaky = native.Function(_FILE, "leaky_relu_forward", "x: real[1], y: real[1], size: int64, slope: float64, "
                                                      "threads: int32")
_leaky_gradient = native.Function(_FILE, "leaky_relu_backward", "kept: real[1], dy: real[1], dx: real[1], size: int64, "
                                                                "slope: float64, threads: int32")


class _Saved(NamedTuple):
    kept: Array
    """Values that are positive where x is: with a slope above 0 the results, which the next operator keeps as well."""
    slope: float


def _supports(be: Backend, x: Array, slope: float = 0.0) -> str | None:
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array) -> tuple[Array, Array]:
    y = _run(_relu, x)
    return y, y


def _vjp(be: Backend, saved: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_run(_relu_gradient, saved, gout),)


def _leaky_forward(be: Backend, x: Array, slope: float) -> tuple[Array, _Saved]:
    y = _run(_leaky, x, slope=(slope,))
    return y, _Saved(y if slope > 0 else x, slope)


def _leaky_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (_run(_leaky_gradient, saved.kept, gout, slope=(saved.slope,)),)


def _run(launch: native.Function, *arrays: Array, slope: tuple[float, ...] = ()) -> Array:
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    out = host.empty_like(flat[0])
    launch(*flat, out, out.size, *slope, native.threads_for(out.nbytes))
    return out.reshape(arrays[0].shape)


def attach() -> None:
    """Add the rules to `relu` and `leaky_relu`."""
    relu.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
    leaky_relu.add(Rule("compiled", _leaky_forward, _leaky_vjp, _supports), backend="numpy")
