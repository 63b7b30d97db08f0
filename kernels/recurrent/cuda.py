"""Shared parts of the recurrent operators' CUDA rules: products outside the time loop, order, gradients of gains.

A time step is one product and one kernel, both on the current stream. All arrays of a sequence are in the order of
computation, so a reversed sequence is flipped once before the time loop and once after it.

x, both weights, x_proj, h_proj, the hidden states of all time steps and the gradients of these may be stored in 16
bits. The rest is float32; so is what adds up from one time step to the next, because increments below half a unit in
the last place of 16 bits would be lost: an LSTM's cell, a GRU's state, and the gradients of states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core.storage import converted
from duoln.kernels import launch
from duoln.kernels.norm import LAYER
from duoln.kernels.norm import cupy as norms
from duoln.kernels.recurrent.plan import MOST_HIDDEN, MOST_KEPT, plan
from duoln.system import cublas

_FLOAT32 = np.dtype(np.float32)


def supports(variants: Sequence[str]) -> Callable[..., str | None]:
    """A function of the arguments: it returns None, or the reason why a rule for these variants cannot run."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", **unused: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no kernel"
        if be.dtype(x) not in ("float32", *STORAGE):
            return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
        if h.shape[1] > MOST_HIDDEN:
            return f"{h.shape[1]} hidden units are more than {MOST_HIDDEN}"
        return launch.too_large(x) if x.size and h.size else "there are no values"

    return reason


class TimeStep:
    """A cell's kernel. The values of a row stay in registers where they fit; else they are read again.

    The first argument tells in what values are stored.
    """

    def __init__(self, cell: str, direction: str, signature: str) -> None:
        self._kept = launch.stored_kernels(f"{cell}/{cell}.cu", f"{cell}_{direction}", signature)
        self._wide = launch.stored_kernels(f"{cell}/wide.cu", f"{cell}_{direction}_wide", signature)

    def bind(self, hidden: int, batch: int, arguments: Sequence[Any], norms: dict[str, int]) -> launch.Launch:
        """The launch of any time step, for these arguments and the macros of the norms."""
        kernels, p, values = self._wide if hidden > MOST_KEPT else self._kept, plan(hidden), arguments[0]
        return kernels[values.dtype].bind(*p.launch(batch), arguments,
                                          p.macros(**norms, **launch.storage_macro(values)), varying="time_step")


def gate_macros(normed: bool) -> dict[str, int]:
    """The macros of a cell that has norms over its gates only, or none."""
    return {"NORM_GATES": int(normed)}


class Walk(NamedTuple):
    """A sequence in the order of computation."""

    x: Array
    """(T, B, in)."""
    mask: Array | None
    reverse: bool
    limit: float | None
    """The bound on the gradients of the states before a time step."""

    @classmethod
    def of(cls, x: Array, mask: Array | None, reverse: bool, limit: float | None) -> Walk:
        """The sequence from arrays in the order of time."""
        return cls(_turned(x, reverse), None if mask is None else _turned(mask, reverse), reverse, limit)

    def bound(self, *gradients: Array) -> None:
        """Keep the gradients of states within the limit, in place."""
        if self.limit is not None:
            for gradient in gradients:
                cupy.clip(gradient, -self.limit, self.limit, out=gradient)

    def in_time(self, array: Array) -> Array:
        """The array in the order of time, from the order of computation, or the reverse."""
        return _turned(array, self.reverse)


def _turned(array: Array, reverse: bool) -> Array:
    return cupy.ascontiguousarray(array[::-1] if reverse else array)


def projection(be: Backend, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """`x @ weight + bias` of all time steps at once, rounded once: (T, B, n) by (n, m) to (T, B, m)."""
    if bias is None:
        proj = cublas.multiply(rows(x), weight)
    else:
        proj = cublas.multiply(rows(x), weight, dtype=_FLOAT32)
        proj += bias
        proj = converted(be, proj, be.dtype(x))
    return proj.reshape(*x.shape[:2], weight.shape[1])


def rows(x: Array) -> Array:
    """Merge all axes but the last into one."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def states(first: Array, time_steps: int) -> Array:
    """A buffer for the states before, between and after all time steps, (T + 1, B, H); it holds the first state."""
    room = cupy.empty((time_steps + 1, *first.shape), dtype=first.dtype)
    room[0] = first
    return room


def last(be: Backend, hidden: Array) -> Array:
    """The last of the states (T + 1, B, H), in float32 and in an array of its own."""
    return hidden[-1].copy() if be.dtype(hidden) == "float32" else be.astype(hidden[-1], "float32")


def start(gradient: Array | None, like: Array) -> Array:
    """A buffer for the gradient of a state, of float32: a copy of `gradient`, or zeros if it is None."""
    return cupy.zeros(like.shape, dtype=_FLOAT32) if gradient is None else gradient.copy()


def gain_and_bias(x: Array, stats: Array, dy: Array, first: int = 0,
                  width: int | None = None) -> tuple[Array, Array]:
    """Gradients of a norm's gain and bias from all time steps at once.

    Args:
        x: (T, B, stride); the columns `first` to `first + width` were normalised.
        stats: three floats per row, (T * B, 3).
        dy: the gradient after the norm, like `x`.
        first: the first column.
        width: the number of columns; all from `first` if None.
    """
    kept = norms.Kept(rows(x), stats)
    _, d_gain, d_bias = norms.backward(LAYER, kept, rows(dy), (False, True, True), first=first, width=width)
    assert d_gain is not None and d_bias is not None
    return d_gain, d_bias


def weight_gradient(x: Array, d_proj: Array) -> Array:
    """The gradient of a weight that multiplied `x` (T, B, n) at every time step: one product."""
    return cublas.multiply(rows(x).T, rows(d_proj))


def input_gradient(d_proj: Array, weight: Array, walk: Walk) -> Array:
    """The gradient of the input, (T, B, in), in the order of time."""
    return walk.in_time(cublas.multiply(rows(d_proj), weight.T).reshape(walk.x.shape))
