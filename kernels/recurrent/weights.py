"""The weights of a compiled walk and their large products: padded, and without the means that norms take out.

A weight is (n, gates * H). It lies so in memory, or transposed, as PyTorch's do; it is read in its own layout, which
its gradient gets, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from duoln.backends.protocol import Array
from duoln.kernels import host
from duoln.kernels.launch import Launch
from duoln.kernels.linear.multiply import MOST_ROWS, multiply
from duoln.kernels.recurrent.positions import Positions, Units, states

FILE = "recurrent/centred.cpp"
_IN_PARALLEL = 1 << 18
"""Values of a weight below which a second thread costs more than it saves."""
_centre = Launch("recurrent/centred", "centred", "x: real[rows, width], out: own, cut: int64, threads: int32")["numpy"]
_centre_columns = Launch("recurrent/centred", "centred_columns", "x: own[rows, columns], out: own, gates: int64, "
                         "hidden: int64, stride: int64, out_stride: int64, parts: int64, threads: int32")["numpy"]


def is_transposed(weight: Array) -> bool:
    """True if a weight is contiguous as its transpose."""
    return bool(weight.flags.f_contiguous and not weight.flags.c_contiguous)


def in_c_order(weight: Array, transposed: bool) -> Array:
    """A weight that is contiguous, or whose transpose is; a copy if it lies in another way."""
    if weight.flags.f_contiguous if transposed else weight.flags.c_contiguous:
        return weight
    return host.contiguous(weight.T).T if transposed else host.contiguous(weight)


@dataclass(frozen=True)
class Means:
    """The means of a weight's rows: one for each part of the gates that shares a norm.

    Layer norm of the product is the same without them, and the product has no mean. To take them out is the gradient of
    itself, too.
    """

    parts: tuple[int, ...]
    """The gates of each part; empty without norms of a row's gates."""

    def subtract_from(self, weight: Array, out: Array | None = None) -> Array:
        """A contiguous weight without them, in `out`, which may be the weight itself."""
        if not self.parts:
            return weight
        if len(self.parts) > 2:  # each gate has a norm
            gates = (-1, weight.shape[1] // len(self.parts))
            rows = host.contiguous(weight).reshape(gates)
            return self._centred(rows, gates[1], None if out is None else out.reshape(gates)).reshape(weight.shape)
        return self._centred(weight, weight.shape[1] * self.parts[0] // sum(self.parts), out)

    @staticmethod
    def _centred(rows: Array, cut: int, out: Array | None) -> Array:
        """Rows without their mean, or without the means before and after the column `cut`."""
        out = host.empty(rows.shape, rows.dtype) if out is None else out
        _centre(rows, out, cut, host.threads_for(rows.size, _IN_PARALLEL))
        return out

    def without_of_bias(self, bias: Array, added: Array | None = None) -> Array:
        """A bias inside the norm without them, and another vector added to it."""
        centred: Array = self.subtract_from(bias[None])[0]
        return centred if added is None else added + centred

    def without_of_transposed(self, units: Units, weight: Array, stride: int, out_stride: int) -> Array:
        """A weight whose transpose is contiguous, (gates * stride, n), without them, as (gates * out_stride, n)."""
        out = host.empty((units.gates * out_stride, weight.shape[1]), weight.dtype)
        _centre_columns(weight, out, units.gates, units.hidden, stride, out_stride, len(self.parts),
                        host.threads_for(weight.size, _IN_PARALLEL))
        return out


def padded(units: Units, means: Means, weight: Array) -> Array:
    """A weight for a product of padded gates: (n, gates * H) to (n, gates * stride), without its means."""
    if not is_transposed(weight):
        return units.filled(means.subtract_from(weight))
    if not means.parts and units.hidden == units.stride:
        return weight
    return means.without_of_transposed(units, weight.T, units.hidden, units.stride).T


def gradient(units: Units, means: Means, x: Array, d_product: Array, transposed: bool) -> Array:
    """The gradient of a weight, from that of its product (rows, gates * stride) with x (rows, n): one large product.

    It lies transposed if the weight does.
    """
    if not transposed:
        d = units.unpad(multiply(x.T, d_product))
        return means.subtract_from(d, out=d)
    d = multiply(d_product.T, x)
    if means.parts or units.hidden < units.stride:
        d = means.without_of_transposed(units, d, units.stride, units.hidden)
    return d.T


def product(rows: Array, weight: Array, units: Units, bias: Array | None = None) -> Array:
    """`rows @ weight + bias` of padded gates, which begins on a cache line.

    The padding is zero; its product with an infinite value would not be.
    """
    out = multiply(rows, weight, host.empty((len(rows), weight.shape[1]), rows.dtype), bias)
    if units.hidden < units.stride:
        out.reshape(len(out), out.shape[1] // units.stride, units.stride)[..., units.hidden:] = 0
    return out


class Walked(NamedTuple):
    """The arrays that every compiled cell keeps for its products."""

    x: Array
    """The inputs of the positions, (positions, in)."""
    w_x: Array
    """(in, gates * stride), without its means, as it was multiplied; of one step (in, gates * H), as it is."""
    w_h: Array
    """(H, gates * H); the walk takes its means out where it packs it."""
    hidden: Array
    """The states, (T + 1, B, stride)."""
    units: Units
    positions: Positions
    means: Means
    transposed: bool
    """True if w_h lies transposed, and w_x of one step with it."""
    is_one_step: bool
    """True if the forward walk multiplies the inputs and the states of one time step with unpacked weights."""

    @classmethod
    def of(cls, units: Units, positions: Positions, x: Array, h: Array, w_x: Array, w_h: Array,
           means: Means) -> Walked:
        """The kept arrays, from an operator's; the states after the first one are allocated, and not yet computed."""
        is_one_step = positions.steps == 1 and positions.slots is None and 0 < positions.batch <= MOST_ROWS
        transposed = is_transposed(w_h)
        w_x = in_c_order(w_x, transposed) if is_one_step else padded(units, means, w_x)
        return cls(positions.rows(x), w_x, in_c_order(w_h, transposed), states(units, positions, h), units, positions,
                   means, transposed, is_one_step)

    def x_proj(self, inner_bias: Array | None = None) -> Array:
        """`x @ w_x + inner_bias` of all positions; of one step the bias alone, to which the walk adds the product."""
        if not self.is_one_step:
            return product(self.x, self.w_x, self.units, inner_bias)
        out = host.empty((len(self.x), self.units.gates * self.units.stride), self.x.dtype)
        out[...] = 0 if inner_bias is None else inner_bias
        return out

    def outputs(self, *states: Array) -> tuple[Array, ...]:
        """The hidden states of all time steps, and the last of each of `states`."""
        last = [self.positions.last(each)[:, :self.units.hidden].copy() for each in states]
        return self.units.unpad(self.positions.blocks(self.hidden)[1], 1), *last

    def previous_states(self) -> Array:
        """The hidden states before the positions: (positions, H)."""
        return self.positions.rows(self.positions.blocks(self.hidden)[0])[:, :self.units.hidden]

    def input_gradients(self, d_x_proj: Array, need_x: bool) -> tuple[Array | None, Array]:
        """The gradients of x (if needed) and w_x from that of their product; each costs one product."""
        w_x = padded(self.units, self.means, self.w_x) if self.is_one_step and need_x else self.w_x
        d_x = self.positions.scatter_rows(multiply(d_x_proj, w_x.T)) if need_x else None
        return d_x, gradient(self.units, self.means, self.x, d_x_proj, is_transposed(self.w_x))

    def state_gradient(self, d_h_proj: Array) -> Array:
        """The gradient of w_h, from that of its product: one product over all positions."""
        return gradient(self.units, self.means, self.previous_states(), d_h_proj, self.transposed)
