"""Shared parts of the compiled recurrent rules: units in panels, positions without padding, and parameters.

A compiled walk gets the input's product for all positions and gives the gradients of both products; the large products
before and after it are made apart. Few inputs can be multiplied within the walk (inputs.h). Its arrays hold
the H columns of a gate in `stride` columns, padded with zeros, so that no vector ends beyond a gate. Positions (time
step, row) that a mask takes out have no row in the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host
from duoln.ops.recurrent.variants import CELLS

PANEL_BYTES = 64
"""The bytes of a panel, as in tile.h."""
ROW_BLOCK = 8
"""The rows of a block, as in walk.h."""
BY_UNITS_BELOW = 16
"""With fewer rows than this, threads share the units of all rows; else each has its own rows, and reads all weights."""
WEIGHTS_READ_ONCE = 8 << 20
"""Bytes of recurrent weights from which threads share the units of any number of rows: if each read all of them at each
time step, the bandwidth of L3 would be the limit."""
FEW_INPUTS = 8
"""Inputs up to which the LSTM of `layer` multiplies them within its walk."""
_WORTH_THREADS = 1 << 20
"""Multiplications of a time step below which a second thread costs more than it saves."""


class Units(NamedTuple):
    """The layout of the gates' columns in the arrays of a walk."""

    gates: int
    hidden: int
    stride: int
    """The columns that a gate takes."""

    @classmethod
    def of(cls, gates: int, hidden: int, dtype: np.dtype) -> Units:
        """The units of a cell."""
        width = PANEL_BYTES // dtype.itemsize
        return cls(gates, hidden, -(-hidden // width) * width)

    def filled(self, x: Array, gates: int | None = None) -> Array:
        """Columns of gates (or of so many) with zeros up to the stride: (..., gates * H) to (..., gates * stride)."""
        count = self.gates if gates is None else gates
        if self.hidden == self.stride:
            return host.contiguous(x)
        if count == 1:
            padded = host.zeros((*x.shape[:-1], self.stride), x.dtype)
            padded[..., :self.hidden] = x
            return padded
        wide = host.zeros((*x.shape[:-1], count, self.stride), x.dtype)
        wide[..., :self.hidden] = x.reshape(*x.shape[:-1], count, self.hidden)
        return wide.reshape(*x.shape[:-1], count * self.stride)

    def unpad(self, x: Array, gates: int | None = None) -> Array:
        """The opposite of `filled`."""
        count = self.gates if gates is None else gates
        if self.hidden == self.stride:
            return x
        if count == 1:
            return host.contiguous(x[..., :self.hidden])
        return host.contiguous(x.reshape(*x.shape[:-1], count, self.stride)[..., :self.hidden]).reshape(
            *x.shape[:-1], count * self.hidden)


class Positions(NamedTuple):
    """The time steps and rows of a sequence that no mask takes out, and the order of the walk."""

    steps: int
    batch: int
    reverse: bool
    places: Array | None
    """The index of each position among all (time step, row); None for all of them."""
    slots: Array | None
    """The place of each (time step, row) among the positions, or -1: int64 (T, B); None without masked rows."""

    @classmethod
    def of(cls, steps: int, batch: int, mask: Array | None, reverse: bool, with_masked: bool = False) -> Positions:
        """The positions of a sequence of this shape; `with_masked` has masked rows among them."""
        if mask is None or mask.all():
            return cls(steps, batch, reverse, None, None)
        if with_masked:
            return cls(steps, batch, reverse, None, np.where(mask, np.int64(0), np.int64(-1)))
        places = np.flatnonzero(mask)
        slots = np.full(mask.shape, -1, np.int64)
        slots.ravel()[places] = np.arange(places.size)
        return cls(steps, batch, reverse, places, slots)

    def rows(self, x: Array) -> Array:
        """Values of the positions: (T, B, n) to (positions, n)."""
        flat = host.contiguous(x).reshape(-1, x.shape[2])
        return flat if self.places is None else flat[self.places]

    def scatter_rows(self, rows: Array) -> Array:
        """The opposite of `rows`, with zeros elsewhere."""
        if self.places is None:
            return rows.reshape(self.steps, self.batch, -1)
        flat = host.zeros((self.steps * self.batch, rows.shape[1]), rows.dtype)
        flat[self.places] = rows
        return flat.reshape(self.steps, self.batch, -1)

    def blocks(self, states: Array) -> tuple[Array, Array]:
        """The states before and after each time step, of (T + 1, B, stride); views."""
        return (states[1:], states[:-1]) if self.reverse else (states[:-1], states[1:])

    def first(self, states: Array) -> Array:
        """The block of the first state, in the order of the walk."""
        return states[-1 if self.reverse else 0]

    def last(self, states: Array) -> Array:
        """The block of the last state, in the order of the walk."""
        return states[0 if self.reverse else -1]


def states(units: Units, positions: Positions, first: Array) -> Array:
    """Room for a state before and after each time step, with the first one in its place: (T + 1, B, stride)."""
    room = host.empty((positions.steps + 1, positions.batch, units.stride), first.dtype)
    block = positions.first(room)
    block[:, :units.hidden] = first
    if units.hidden < units.stride:
        block[:, units.hidden:] = 0
    return room


def padded_gradient(units: Units, d_state: Array | None, like: Array) -> Array:
    """The gradient of a last state as (B, stride), in new memory; zeros for None."""
    filled = host.zeros((like.shape[1], units.stride), like.dtype)
    if d_state is not None:
        filled[:, :units.hidden] = d_state
    return filled


def threads(positions: Positions, w_h: Array, by_units: bool) -> tuple[int, int]:
    """The number of threads of a walk, and 1 if they share units instead of rows, as they must with `by_units`."""
    count = host.threads_for(positions.batch * w_h.size, _WORTH_THREADS)
    return count, int(by_units or positions.batch < BY_UNITS_BELOW or w_h.nbytes >= WEIGHTS_READ_ONCE)


def row_blocks(batch: int, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Zeros for a parameter's gradient, which a kernel adds up for each block of rows."""
    return host.zeros((-(-batch // ROW_BLOCK), *shape), dtype)


PARAMETERS = ("gain_x", "gain_h", "bias_x", "gain_c", "bias_c", "bias_h")
"""The parameters of the compiled kernels; `bias_h` is a GRU's, and `bias_x` the bias of all other cells' gates."""


class Parameter(NamedTuple):
    """A parameter of a compiled kernel."""

    name: str
    """One of `PARAMETERS`."""
    terms: tuple[int, ...]
    """The operator's parameters whose sum it is, as places in (bias, *norms); each of them has its gradient."""
    gates: int
    """One for the norm of an LSTM's cell and a bias of a GRU's recurrent n alone, else all gates of the cell."""


class Parameters(NamedTuple):
    """The parameters that a variant's compiled kernels read, made of an operator's (bias, *norms)."""

    read: tuple[Parameter, ...]
    given: int
    """The number of (bias, *norms)."""

    @classmethod
    @cache
    def of(cls, cell: str, norm: str) -> Parameters:
        """Those of a variant: all biases that are added to the gates are one; a GRU's products have one each."""
        of_cell = CELLS[cell]
        variant = of_cell.variants[norm]
        places = {name: place for place, name in enumerate(("bias", *variant.norms)) if place or variant.outer_bias}
        names = {name: [name] for name in PARAMETERS}
        names["bias_x"], names["bias_h"] = (["bias_x", "bias"], ["bias_h", "bias_n"]) if of_cell.apart else (
            ["bias_x", "bias_h", "bias"], [])
        read = []
        for name, of in names.items():
            terms = tuple(places[term] for term in of if term in places)
            if terms:
                of_one_gate = name.endswith("_c") or ("bias_n" in places and name == "bias_h")
                read.append(Parameter(name, terms, 1 if of_one_gate else of_cell.gates))
        return cls(tuple(read), 1 + len(variant.norms))

    def filled(self, units: Units, given: Sequence[Any]) -> dict[str, Array | None]:
        """The parameters as a kernel reads them, padded to the stride; None for one that is not there."""
        made: dict[str, Array | None] = dict.fromkeys(PARAMETERS)
        for name, terms, gates in self.read:
            total = given[terms[0]]
            for term in terms[1:]:
                total = total + given[term]
            made[name] = units.filled(total, gates)
        return made

    def room(self, units: Units, batch: int, dtype: np.dtype) -> dict[str, Array | None]:
        """Zeros for the parameters' gradients by name, `d_bias_x`, which a kernel adds up for each block of rows."""
        made: dict[str, Array | None] = {f"d_{name}": None for name in PARAMETERS}
        for name, _, gates in self.read:
            made[f"d_{name}"] = row_blocks(batch, (gates * units.stride,), dtype)
        return made

    def gradients(self, units: Units, parts: Mapping[str, Any]) -> list[Array | None]:
        """The gradients of (bias, *norms), from the parts that a kernel gives of each parameter."""
        made: list[Array | None] = [None] * self.given
        for name, terms, gates in self.read:
            d = units.unpad(host.added_up(parts[f"d_{name}"]), gates)
            for term in terms:
                made[term] = d
        return made
