"""The recurrent operators on the CPU, compiled: the whole sequence in one call, with its weights packed once.

Kept for the gradient, per position (`Fused.kept`): the states, and the products before their norms, 4 H each of an
LSTM. For few inputs of `layer` its walks multiply these themselves, and x_proj is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.product.centred import centred
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import native_cell
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.cells import Arrays, Norms, Supports, supports
from duoln.kernels.recurrent.positions import Positions, Units
from duoln.ops.recurrent.variants import CELLS

_SIZES = "slots: int64[2]?, steps: int64, batch: int64, "
_WORK = "reverse: int32, threads: int32, by_units: int32"
_ONE_STEP = ", x: real[2]?, w_x: real[2]?, inputs: int64"
_RNN = ("w_h: real[2], x_proj: real[2], gain_h: real[1]?, bias: real[1], hidden: real[3], norms: real[1]?, "
        + _SIZES + "units: int64, eps: float64, " + _WORK)
_GRU = ("w_h: real[2], x_proj: real[2], h_proj: real[2], gain_x: real[1]?, bias_x: real[1], gain_h: real[1]?, "
        "bias_h: real[1]?, hidden: real[3], norms: real[2]?, " + _SIZES + "units: int64, eps: float64, "
        "gates_normed: int32, " + _WORK)
_LSTM = ("w_h: real[2], x: real[2]?, w_x: real[2]?, x_proj: real[2]?, h_proj: real[2]?, gain_x: real[1]?, "
         "gain_h: real[1]?, bias: real[1], gain_c: real[1]?, bias_c: real[1]?, hidden: real[3], cells: real[3], "
         "norms: real[2]?, " + _SIZES + "inputs: int64, units: int64, eps: float64, variant: int32, " + _WORK)


class _Walk(NamedTuple):
    """The compiled walks of a cell."""

    cell: str
    forward: walks.Kernel
    backward: walks.Kernel
    of_norms: tuple[int, ...]
    """The numbers of a position that norms keep."""
    overwrites: bool = False
    """True if the backward walk writes the products' gradients over the products."""
    few_inputs: str = ""
    """The variant whose walks can multiply few inputs."""


def _walk(cell: str, shared: str, forward: str, backward: str, **facts: Any) -> _Walk:
    file = f"recurrent/{cell}/{cell}.cpp"
    return _Walk(cell, walks.Kernel(file, f"{cell}_forward", shared + forward),
                 walks.Kernel(file, f"{cell}_backward", f"{shared}, d_hidden: real[3]?, {backward}"), **facts)


_RNN_WALK = _walk("rnn", _RNN, _ONE_STEP, "dh: real[2], d_x_proj: real[2], d_gain_h: real[2]?, d_bias: real[2], "
                  "limit: float64", of_norms=())
_GRU_WALK = _walk("gru", _GRU, _ONE_STEP, "dh: real[2], d_x_proj: real[2], d_h_proj: real[2], d_gain_x: real[2]?, "
                  "d_bias_x: real[2], d_gain_h: real[2]?, d_bias_h: real[2]?, limit: float64", of_norms=(4,))
_LSTM_WALK = _walk("lstm", _LSTM, "", "dh: real[2], dc: real[2], d_x: real[2]?, d_w_x: real[3]?, d_bias: real[2], "
                   "d_gain_x: real[2]?, d_gain_h: real[2]?, d_gain_c: real[2]?, d_bias_c: real[2]?, limit: float64",
                   of_norms=(4,), overwrites=True, few_inputs="layer")


class _Products(NamedTuple):
    x_proj: Array | None
    """With the bias inside the norm. Where a gate needs nothing but the sum of both products, that sum. None for few
    inputs, whose product the walks compute.
    """
    h_proj: Array | None
    """None where `x_proj` is the sum."""


class _Saved(NamedTuple):
    walk: _Walk
    walked: walks.Walked
    parameters: dict[str, Array]
    inner_bias: Array | None
    """The bias inside the input's norm, without the means of its parts."""
    names: list[str]
    """Those of the norms' parameters."""
    cells: Array | None
    """An LSTM's cells, like `walked.hidden`."""
    norms: Array | None
    products: list[_Products]
    """One, or none after a gradient has taken them, because its walk overwrites them."""
    normed: Norms
    has_few_inputs: bool
    """True if the walks multiply the inputs. They give no gradient of x_proj then."""
    norm: str
    eps: float
    limit: float
    """The bound on the gradients of states between time steps; 0 for none."""

    def arguments(self, products: _Products, is_forward: bool = False) -> dict[str, Any]:
        """The arguments that both walks share. That forward multiplies the inputs of one step, too."""
        walked, positions, normed = self.walked, self.walked.positions, self.normed
        multiplies = self.has_few_inputs or (is_forward and walked.is_one_step)
        threads, by_units = walks.threads(positions, walked.w_h)
        return {"w_h": walked.w_h, "x": walked.x if multiplies else None, "w_x": walked.w_x if multiplies else None,
                "x_proj": products.x_proj, "h_proj": products.h_proj, **self.parameters, "hidden": walked.hidden,
                "cells": self.cells, "norms": self.norms, "slots": positions.slots, "steps": positions.steps,
                "batch": positions.batch, "inputs": walked.x.shape[1], "units": walked.units.hidden,
                "eps": self.eps, "gates_normed": int(normed.gates), "variant": normed.number,
                "reverse": int(positions.reverse), "threads": threads, "by_units": by_units}


def _centring(cell: str) -> Callable[..., Array]:
    """A function that takes the means out of a matrix' rows: one for each part of the gates that shares a norm."""
    of_cell = CELLS[cell]
    if len(of_cell.parts) == 1:
        return centred

    def in_parts(weight: Array, out: Array | None = None) -> Array:
        return centred(weight, weight.shape[1] * of_cell.parts[0] // of_cell.gates, out)

    return in_parts


def _without_means(cell: str, vector: Array, added: Array | None = None) -> Array:
    """A bias inside the norms without the means of its parts, and `added` to it."""
    if len(CELLS[cell].parts) == 1:
        return (vector if added is None else added + vector) - vector.mean()
    centre: Array = _centring(cell)(vector[None])[0]
    return centre if added is None else added + centre


def _as_it_is(weight: Array, out: Array | None = None) -> Array:
    return weight


def _forward(walk: _Walk, be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[tuple[Array, ...], _Saved]:
    norm, normed = attrs["norm"], Norms.of(walk.cell, attrs["norm"])
    states, w_x, w_h, bias, mask, norms = Arrays.of(walk.cell, norm, arrays)
    units = Units.of(CELLS[walk.cell].gates, w_h.shape[0], x.dtype)
    positions = Positions.of(x.shape[0], x.shape[1], mask, attrs["reverse"])
    centre = _centring(walk.cell) if normed.gates else _as_it_is
    walked = walks.Walked.of(units, positions, x, states[0], w_x, w_h, centre)
    is_inner = bias is not None and CELLS[walk.cell].variants[norm].inner_bias
    few_inputs = norm == walk.few_inputs and walked.x.shape[1] <= walks.FEW_INPUTS and not walked.is_one_step
    saved = _Saved(walk, walked, walks.filled_parameters(walk.cell, norm, units, bias, norms),
                   units.filled(_without_means(walk.cell, bias)) if is_inner else None, list(norms),
                   walks.states(units, positions, states[1]) if len(states) == 2 else None,
                   np.empty((len(walked.x), *walk.of_norms), x.dtype) if norms else None, [], normed, few_inputs, norm,
                   attrs["eps"], attrs["gradient_limit"] or 0.0)
    saved.products.append(_walk_forward(saved))
    return walked.outputs(walked.hidden, *([] if saved.cells is None else [saved.cells])), saved


def _walk_forward(saved: _Saved) -> _Products:
    """Compute the states after the first ones, and what norms keep, in their places; returns the products."""
    walked, cell = saved.walked, CELLS[saved.walk.cell]
    gates = cell.gates if "gain_x" in saved.names else int(cell.apart)  # apart, a gate reads it: a GRU's n
    room = (len(walked.x), gates * walked.units.stride)
    products = _Products(None if saved.has_few_inputs else walked.x_proj(saved.inner_bias),
                         host.empty(room, walked.x.dtype) if gates else None)
    saved.walk.forward(saved.arguments(products, is_forward=True))
    return products


def _products_for_gradient(saved: _Saved) -> _Products:
    """The products, which the caller may overwrite if the walk does."""
    if not saved.walk.overwrites:
        return saved.products[0]
    try:
        return saved.products.pop()
    except IndexError:  # a gradient has taken them; a second walk gives the same bits
        walked = saved.walked._replace(hidden=saved.walked.hidden.copy())
        cells, norms = (None if a is None else a.copy() for a in (saved.cells, saved.norms))
        return _walk_forward(saved._replace(walked=walked, cells=cells, norms=norms))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walk, walked, products = saved.walk, saved.walked, _products_for_gradient(saved)
    units, positions, dtype, cell = walked.units, walked.positions, walked.x.dtype, CELLS[walk.cell]
    d_states = [walks.given(units, d, walked.hidden) for d in gouts[1:]]
    few = saved.has_few_inputs
    d_rows = host.empty_like(walked.x) if few and needs[0] else None
    d_weights = walks.row_blocks(positions.batch, walked.w_x.shape, dtype) if few else None
    d_x_proj, d_h_proj = products
    if not walk.overwrites:
        assert products.x_proj is not None
        d_x_proj = host.empty_like(products.x_proj)
        d_h_proj = host.empty_like(d_x_proj) if cell.apart else None
    parts = walks.room_for_gradients(positions.batch, saved.parameters)
    walk.backward({**saved.arguments(products), **parts, "d_hidden": walks.optional(gouts[0]),
                   **{f"d{name}": d for name, d in zip(cell.states, d_states, strict=True)}, "d_x": d_rows,
                   "d_w_x": d_weights, "d_x_proj": d_x_proj, "d_h_proj": d_h_proj,
                   "limit": saved.limit})
    if d_weights is None:
        d_x, d_w_x = walked.input_gradients(d_x_proj, needs[0])
    else:
        d_x = None if d_rows is None else positions.spread(d_rows)
        d_w_x = units.cut(host.added_up(d_weights))
    d_w_h = walked.state_gradient(d_x_proj if d_h_proj is None else d_h_proj)
    gradients = walks.parameter_gradients(walk.cell, saved.norm, units, parts)
    if saved.normed.gates:  # remove the means that `centre` removed from the weights
        d_w_x, d_w_h = (walked.centre(d, out=d) for d in (d_w_x, d_w_h))
    if saved.inner_bias is not None:
        gradients["bias"] = _without_means(walk.cell, units.cut(column_sums(d_x_proj)), gradients.get("bias"))
    return [d_x, *(units.cut(d, 1) for d in d_states), d_w_x, d_w_h, gradients.get("bias"), None,
            *(gradients[name] for name in saved.names)]


def _supports(cell: str) -> Supports:
    fused = supports(cell)

    def refusal(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
        return fused(be, x, *arrays, **attrs) or native.refusal(f"recurrent/{cell}/{cell}.cpp", x.dtype)

    return refusal


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`."""
    for operator, walk in ((ops.rnn, _RNN_WALK), (ops.lstm, _LSTM_WALK), (ops.gru, _GRU_WALK)):
        operator.add(Rule("compiled walk", partial(_forward, walk), _vjp, _supports(walk.cell)), backend="numpy")
    ops.lstm_cell.add(native_cell.rule(), backend="numpy")
