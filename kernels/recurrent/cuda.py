"""Shared parts of the recurrent operators' CUDA rules: products outside the time loop, order, gradients of gains.

A time step is one product and one kernel, both on the current stream. All arrays of a sequence are in the order of
computation, so a reversed sequence is flipped once before the time loop and once after it.

x, both weights, x_proj, h_proj, the hidden states of all time steps and the gradients of these may be stored in 16
bits. The rest is float32; so is what adds up from one time step to the next, because increments below half a unit in
the last place of 16 bits would be lost: an LSTM's cell, a GRU's state, and the gradients of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends import cublas
from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core.storage import converted
from duoln.kernels.launch import cuda as launch
from duoln.kernels.norm import parameter_gradients
from duoln.kernels.recurrent.cells import FUSED, Norms, Supports
from duoln.kernels.recurrent.plan import MOST_HIDDEN
from duoln.ops.recurrent.variants import CELLS

_FLOAT32 = np.dtype(np.float32)


def supports(cell: str) -> Supports:
    """The condition of the rules for a cell's variants."""

    def refusal(be: Backend, x: Array, h: Array, *arrays: Array, norm: str = "layer", **unused: Any) -> str | None:
        if (cell, norm) not in FUSED:
            return f"norm '{norm}' has no kernel"
        if be.dtype(x) not in ("float32", *STORAGE):
            return f"the kernel is for float32 and 16 bits, not {be.dtype(x)}"
        if h.shape[1] > MOST_HIDDEN:
            return f"{h.shape[1]} hidden units are more than {MOST_HIDDEN}"
        return launch.too_large(x) if x.size and h.size else "there are no values"

    return refusal


class Variant(NamedTuple):
    """A cell and its norm, with the facts that the rules read."""

    cell: str
    norm: str
    gates: int
    parts: int
    """The norms of one product."""
    normed: Norms
    norm_count: int
    """The norms of a row in a time step."""
    products_apart: bool
    """True if a gate needs one of the products alone."""
    is_apart: bool
    """True if the gradients of the two products differ: each has a norm of its own, or a gate needs it alone."""
    has_inner_bias: bool
    """True if the bias is inside the input's norm."""
    kernel_adds_bias: bool
    """True if the kernel adds the bias to the gates; if not, it is in x_proj."""
    keeps_sum: bool
    """True if the kernel adds the products up in x_proj, and no gate needs one alone."""
    increases_h: bool
    """True if a time step adds a little to the hidden state, which would be lost in 16 bits."""
    row_gradients: dict[str, int]
    """The parameters whose gradients a walk gives for each row, with their gates; one for an LSTM's cell.

    All biases that a kernel adds to the gates have that of "bias".
    """

    @classmethod
    @cache
    def of(cls, cell: str, norm: str) -> Variant:
        """The variant of a cell."""
        of_cell, normed, variant = CELLS[cell], Norms.of(cell, norm), CELLS[cell].variants[norm]
        products = sum(f"gain_{name}" in variant.norms for name in "xh")
        of_rows = list(variant.norms)
        if cell == "lstm":
            of_rows = [name for name in ("gain_x", "gain_h", "bias", "gain_c", "bias_c")
                       if name in ("bias", *variant.norms)]
        return cls(cell, norm, of_cell.gates, len(of_cell.parts), normed,
                   norm_count=products * len(of_cell.parts) + normed.cell, products_apart=of_cell.apart,
                   is_apart="gain_x" in variant.norms or of_cell.apart, has_inner_bias=variant.inner_bias,
                   kernel_adds_bias=cell == "lstm", keeps_sum=cell == "rnn",
                   increases_h=of_cell.increased == "h",
                   row_gradients={name: 1 if name.endswith("_c") else of_cell.gates for name in of_rows})


class Problem(NamedTuple):
    """A cell's variant on its arrays, as the kernels take them."""

    variant: Variant
    walk: Walk
    w_x: Array
    w_h: Array
    bias: Array | None
    norms: dict[str, Array]
    """The norms' parameters by name, contiguous."""


class Walk(NamedTuple):
    """A sequence in the order of computation."""

    x: Array
    """(T, B, in), with 0 where a row is masked: padding may be infinite, and its gradient would be NaN."""
    mask: Array | None
    reverse: bool
    limit: float | None
    """The bound on the gradients of the states before a time step."""

    @classmethod
    def of(cls, x: Array, mask: Array | None, reverse: bool, limit: float | None) -> Walk:
        """The sequence from arrays in the order of time."""
        if mask is not None:
            x = _unpadded(x, mask)
        return cls(_reverse_time(x, reverse), None if mask is None else _reverse_time(mask, reverse), reverse, limit)

    def clip_gradients(self, *gradients: Array) -> None:
        """Keep the gradients of states within the limit, in place."""
        if self.limit is not None:
            for gradient in gradients:
                cupy.clip(gradient, -self.limit, self.limit, out=gradient)

    def in_time(self, array: Array) -> Array:
        """The array in the order of time, from the order of computation, or the reverse."""
        return _reverse_time(array, self.reverse)


def _unpadded(x: Array, mask: Array) -> Array:
    """The values where the mask (T, B) is True, and 0 elsewhere."""
    return cupy.where(mask[..., None], x, x.dtype.type(0))


def _reverse_time(array: Array, reverse: bool) -> Array:
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


def copy_last_state(be: Backend, hidden: Array) -> Array:
    """The last of the states (T + 1, B, H), in float32 and in an array of its own."""
    return hidden[-1].copy() if be.dtype(hidden) == "float32" else be.astype(hidden[-1], "float32")


def gradient_buffer(gradient: Array | None, like: Array) -> Array:
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
    return parameter_gradients("cupy", rows(x), stats, rows(dy), first, x.shape[-1] - first if width is None else width)


def bias_gradient(problem: Problem, of_norms: Mapping[str, Array], d_x_proj: Array) -> Array | None:
    """The gradient of the bias from those of the norms' parameters and of x_proj; None without a bias.

    A bias that a kernel adds to the gates has that of the norm's bias, where there is one.
    """
    if problem.bias is None:
        return None
    outside = of_norms.get("bias_x") if problem.variant.kernel_adds_bias else None
    if outside is None:
        return launch.sum_columns(rows(d_x_proj))[0]
    if not problem.variant.has_inner_bias:
        return outside
    return outside + launch.sum_columns(rows(d_x_proj))[0]


def weight_gradient(x: Array, d_proj: Array) -> Array:
    """The gradient of a weight that multiplied `x` (T, B, n) at every time step: one product."""
    return cublas.multiply(rows(x).T, rows(d_proj))


def input_gradient(d_proj: Array, weight: Array, walk: Walk) -> Array:
    """The gradient of the input, (T, B, in), in the order of time."""
    d_x = cublas.multiply(rows(d_proj), weight.T).reshape(walk.x.shape)
    return walk.in_time(d_x if walk.mask is None else _unpadded(d_x, walk.mask))
