"""The recurrent operators on the CPU, compiled: the whole sequence in one call, with its weights packed once.

Kept for the gradient, per position (`CompiledWalk.kept`): the states, and the products before their norms, 4 H each of
an LSTM. For few inputs of `layer` its walks multiply these themselves, and x_proj is not kept. Each variant has a text
of its own, so that its first use compiles no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.cells import COMPILED_WALKS, Supports
from duoln.kernels.recurrent.positions import Parameters, Positions, Units
from duoln.kernels.recurrent.weights import Means, Walked
from duoln.ops.recurrent.variants import CELLS

_SIZES = "slots: int64[2]?, steps: int64, batch: int64, "
_WORK = "reverse: int32, threads: int32, by_units: int32, transposed: int32"
_ONE_STEP = ", x: real[2]?, w_x: real[2]?, inputs: int64"
_RNN = ("w_h: real[2], x_proj: real[2], h_proj: real[2]?, gain_x: real[1]?, gain_h: real[1]?, bias_x: real[1], "
        "hidden: real[3], norms: real[2]?, " + _SIZES + "units: int64, eps: float64, " + _WORK)
_GRU = ("w_h: real[2], x_proj: real[2], h_proj: real[2], gain_x: real[1]?, bias_x: real[1]?, gain_h: real[1]?, "
        "bias_h: real[1]?, hidden: real[3], norms: real[2]?, " + _SIZES + "units: int64, eps: float64, " + _WORK)
_LSTM = ("w_h: real[2], x: real[2]?, w_x: real[2]?, x_proj: real[2]?, h_proj: real[2]?, gain_x: real[1]?, "
         "gain_h: real[1]?, bias_x: real[1], gain_c: real[1]?, bias_c: real[1]?, hidden: real[3], cells: real[3], "
         "raw_cells: real[2]?, norms: real[2]?, " + _SIZES + "inputs: int64, units: int64, eps: float64, " + _WORK)
_SHARED = ("w_h", "x", "w_x", "x_proj", "h_proj", *walks.PARAMETERS, "hidden", "cells", "raw_cells", "norms", "slots",
           "steps", "batch", "inputs", "units", "eps", "reverse", "threads", "by_units", "transposed")
_BACKWARD = (*_SHARED, "d_hidden", "dh", "dc", "d_x", "d_w_x", "d_x_proj", "d_h_proj",
             *(f"d_{name}" for name in walks.PARAMETERS), "limit")

_Kernel = Callable[[np.dtype, tuple[Any, ...]], None]
"""A compiled walk, called with values as `_SHARED` or `_BACKWARD` names them."""


_SIGNATURES = {
    "rnn": (_RNN + _ONE_STEP, _RNN + ", d_hidden: real[3]?, dh: real[2], d_x_proj: real[2], d_h_proj: real[2]?, "
            "d_gain_x: real[2]?, d_gain_h: real[2]?, d_bias_x: real[2], limit: float64"),
    "gru": (_GRU + _ONE_STEP, _GRU + ", d_hidden: real[3]?, dh: real[2], d_x_proj: real[2], d_h_proj: real[2], "
            "d_gain_x: real[2]?, d_bias_x: real[2]?, d_gain_h: real[2]?, d_bias_h: real[2]?, limit: float64"),
    "lstm": (_LSTM, _LSTM + ", d_hidden: real[3]?, dh: real[2], dc: real[2], d_x: real[2]?, d_w_x: real[3]?, "
             "d_bias_x: real[2], d_gain_x: real[2]?, d_gain_h: real[2]?, d_gain_c: real[2]?, d_bias_c: real[2]?, "
             "limit: float64"),
}
"""The parameters of forward and backward of each cell's walks."""

def file_of(cell: str, norm: str) -> str:
    """The text of a variant's walks."""
    return f"recurrent/{cell}/{cell}_{COMPILED_WALKS[cell, norm].text}.cpp"


class _Walk(NamedTuple):
    """The compiled walks of a variant, and what a call needs to know of it."""

    forward: _Kernel
    backward: _Kernel
    gates: int
    states: int
    kept_norms: int
    """The numbers of a position that norms keep; over the batch those of a time step and unit. 0 without norms."""
    h_gates: int
    """The gates whose product with the state is kept beside that with the input."""
    is_apart: bool
    """True if the backward walk writes the gradient of the state's product beside that of the input's."""
    overwrites: bool
    """True if the backward walk writes the products' gradients over the products."""
    has_few_inputs: bool
    """True if the walks can multiply few inputs."""
    is_of_batch: bool
    """True if norms are over the batch: its masked rows count in the statistics."""
    is_carried: bool
    """True if an LSTM's cells are carried after their norm; those before it are kept beside them."""
    means: Means
    has_inner_bias: bool
    """True if the bias is inside the input's norm."""
    parameters: Parameters

    @classmethod
    def of(cls, cell: str, norm: str) -> _Walk:
        """The walks of a cell's variant."""
        of_cell, variant = CELLS[cell], CELLS[cell].variants[norm]
        gates, over, is_lstm = of_cell.gates, variant.over if variant.is_normed else "", cell == "lstm"
        parts = {"row": of_cell.parts, "gate": () if of_cell.apart else (1,) * gates}.get(
            over if "gain_h" in variant.norms else "", ())  # the norm of a GRU's n alone comes after r
        h_gates = gates if "gain_x" in variant.norms else int(of_cell.apart)  # apart: a GRU's n
        forward, backward = (
            native.Function(file_of(cell, norm), f"{cell}_{direction}", signature).unchecked(names)
            for direction, signature, names in zip(("forward", "backward"), _SIGNATURES[cell], (_SHARED, _BACKWARD),
                                                   strict=True))
        return cls(forward, backward, gates, len(of_cell.states), _kept_norms(cell, over, h_gates), h_gates,
                   is_apart=h_gates > 0 and not is_lstm, overwrites=is_lstm,
                   has_few_inputs=(cell, norm) == ("lstm", "layer"), is_of_batch=over == "batch",
                   is_carried=is_lstm and over == "gate", means=Means(parts), has_inner_bias=variant.inner_bias,
                   parameters=Parameters.of(cell, norm))


def _kept_norms(cell: str, over: str, h_gates: int) -> int:
    """The numbers that norms keep, see `_Walk.kept_norms`: the mean and rstd of an LSTM's cell, rstd of the rest."""
    if over == "batch":
        return 2 * (2 * CELLS[cell].gates + int(cell == "lstm"))
    if cell == "rnn":
        return 1 + h_gates if over else 0
    return {"lstm": {"row": 4, "gate": 6}, "gru": {"row": 4, "gate": 6}}[cell].get(over, 0)


class _Saved(NamedTuple):
    walk: _Walk
    walked: Walked
    parameters: list[Array | None]
    """As `positions.PARAMETERS`."""
    inner_bias: Array | None
    """The bias inside the input's norm, without the means of its parts."""
    cells: Array | None
    """An LSTM's cells, like `walked.hidden`."""
    raw_cells: Array | None
    """The cells before their norm, (positions, stride), if `cells` are not: they are after it, or a mask has kept some.
    """
    norms: Array | None
    products: list[tuple[Array | None, Array | None]]
    """`_walk_forward`'s, or nothing after a gradient has taken them, because its walk overwrites them."""
    has_few_inputs: bool
    """True if the walks multiply the inputs. They give no gradient of x_proj then."""
    eps: float
    limit: float
    """The bound on the gradients of states between time steps; 0 for none."""

    def arguments(self, x_proj: Array | None, h_proj: Array | None, multiplies: bool) -> tuple[Any, ...]:
        """The arguments that both walks share, as `_SHARED`; `multiplies` is true if the walk multiplies the inputs."""
        walk, walked, positions = self.walk, self.walked, self.walked.positions
        x, w_x = (walked.x, walked.w_x) if multiplies else (None, None)
        return (walked.w_h, x, w_x, x_proj, h_proj, *self.parameters, walked.hidden, self.cells, self.raw_cells,
                self.norms, positions.slots, positions.steps, positions.batch, walked.x.shape[1], walked.units.hidden,
                self.eps, positions.reverse, *walks.threads(positions, walked.w_h, walk.is_of_batch), walked.transposed)


def _forward(variants: dict[str, _Walk], be: Backend, x: Array, *arrays: Any, norm: str, eps: float, reverse: bool,
             gradient_limit: float | None) -> tuple[tuple[Array, ...], _Saved]:
    walk = variants[norm]
    h, w_x, w_h, bias, mask = arrays[0], *arrays[walk.states:walk.states + 4]
    units = Units.of(walk.gates, h.shape[1], x.dtype)
    positions = Positions.of(x.shape[0], x.shape[1], mask, reverse, walk.is_of_batch)
    if walk.has_few_inputs and x.shape[2] <= walks.FEW_INPUTS:
        w_x = host.contiguous(w_x)
    walked = Walked.of(units, positions, x, h, w_x, w_h, walk.means)
    filled = walk.parameters.filled(units, (bias, *arrays[walk.states + 4:]))
    has_raw_cells = walk.is_carried or (walk.states == 2 and walk.is_of_batch and positions.slots is not None)
    saved = _Saved(walk, walked, filled,
                   units.filled(walk.means.without_of_bias(bias)) if walk.has_inner_bias else None,
                   walks.states(units, positions, arrays[1]) if walk.states == 2 else None,
                   host.empty((len(walked.x), units.stride), x.dtype) if has_raw_cells else None,
                   _room_of_norms(walk, walked), [],
                   walk.has_few_inputs and walked.x.shape[1] <= walks.FEW_INPUTS and not walked.is_one_step, eps,
                   gradient_limit or 0.0)
    saved.products.append(_walk_forward(saved))
    return walked.outputs(*([walked.hidden] if saved.cells is None else [walked.hidden, saved.cells])), saved


def _room_of_norms(walk: _Walk, walked: Walked) -> Array | None:
    if not walk.kept_norms:
        return None
    shape = (len(walked.x), walk.kept_norms)
    if walk.is_of_batch:
        shape = (walked.positions.steps, walk.kept_norms * walked.units.stride)
    return host.empty(shape, walked.x.dtype)


def _walk_forward(saved: _Saved) -> tuple[Array | None, Array | None]:
    """Compute the states after the first ones, and what norms keep, in their places.

    Returns:
        x_proj, with the bias inside the norm; where a gate needs nothing but the sum of both products, that sum; None
        for few inputs, whose product the walks compute. h_proj; None where x_proj is the sum.
    """
    walk, walked = saved.walk, saved.walked
    x_proj = None if saved.has_few_inputs else walked.x_proj(saved.inner_bias)
    h_proj = host.empty((len(walked.x), walk.h_gates * walked.units.stride), walked.x.dtype) if walk.h_gates else None
    walk.forward(walked.x.dtype, saved.arguments(x_proj, h_proj, saved.has_few_inputs or walked.is_one_step))
    return x_proj, h_proj


def _products_for_gradient(saved: _Saved) -> tuple[Array | None, Array | None]:
    """The products, which the caller may overwrite if the walk does."""
    if not saved.walk.overwrites:
        return saved.products[0]
    try:
        return saved.products.pop()
    except IndexError:  # a gradient has taken them; a second walk gives the same bits
        walked = saved.walked._replace(hidden=saved.walked.hidden.copy())
        cells, raw, norms = (None if a is None else a.copy() for a in (saved.cells, saved.raw_cells, saved.norms))
        return _walk_forward(saved._replace(walked=walked, cells=cells, raw_cells=raw, norms=norms))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walk, walked, (x_proj, h_proj) = saved.walk, saved.walked, _products_for_gradient(saved)
    units, positions, dtype, few = walked.units, walked.positions, walked.x.dtype, saved.has_few_inputs
    d_states = [walks.given(units, d, walked.hidden) for d in gouts[1:]]
    d_rows = host.empty_like(walked.x) if few and needs[0] else None
    d_weights = walks.row_blocks(positions.batch, walked.w_x.shape, dtype) if few else None
    d_x_proj, d_h_proj = x_proj, h_proj
    if not walk.overwrites:
        assert x_proj is not None
        d_x_proj = host.empty_like(x_proj)
        d_h_proj = host.empty_like(x_proj) if walk.is_apart else None
    parts = walk.parameters.room(units, positions.batch, dtype)
    d_hidden = None if gouts[0] is None else host.contiguous(gouts[0].astype(dtype, copy=False))
    walk.backward(dtype, (*saved.arguments(x_proj, h_proj, few), d_hidden, d_states[0], d_states[-1], d_rows, d_weights,
                          d_x_proj, d_h_proj, *parts, saved.limit))
    if d_weights is None:
        d_x, d_w_x = walked.input_gradients(d_x_proj, needs[0])
    else:
        d_x = None if d_rows is None else positions.spread(d_rows)
        d_w_x = units.cut(host.added_up(d_weights))
        d_w_x = walk.means.without(d_w_x, out=d_w_x)
    d_w_h = walked.state_gradient(d_x_proj if d_h_proj is None else d_h_proj)
    d_bias, *d_norms = walk.parameters.gradients(units, parts)
    if walk.has_inner_bias:
        d_bias = walk.means.without_of_bias(units.cut(column_sums(d_x_proj)), d_bias)
    return [d_x, *[units.cut(d, 1) for d in d_states], d_w_x, d_w_h, d_bias, None, *d_norms]


def _supports(cell: str) -> Supports:
    def refusal(be: Backend, x: Array, h: Array, *arrays: Array, norm: str, **unused: Any) -> str | None:
        if CELLS[cell].variants[norm].over == "batch" and x.shape[1] == 1:
            return "the statistics of one row are none"
        if not x.size or not h.size:
            return "there are no values"
        return native.refusal(file_of(cell, norm), x.dtype)

    return refusal


@cache
def compiled_walks(cell: str) -> dict[str, _Walk]:
    """The compiled walks of a cell by norm."""
    return {norm: _Walk.of(cell, norm) for of_cell, norm in COMPILED_WALKS if of_cell == cell}


def rules() -> list[tuple[Any, Rule]]:
    """The operators over sequences, and the rule of each."""
    return [(operator, Rule("compiled walk", partial(_forward, compiled_walks(operator.name)), _vjp,
                            _supports(operator.name))) for operator in (ops.rnn, ops.lstm, ops.gru)]
