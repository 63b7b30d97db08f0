"""The recurrent operators on the CPU, compiled: a sequence in one call, with its weights packed once; one time step of
a few rows where no gradient is recorded; an LSTM's time step after its products.

Kept for the gradient, per position (`CompiledWalk.kept`): the states, and the products before their norms, 4 H each of
an LSTM. For few inputs of `layer` its walks multiply these themselves, and x_proj is not kept. Each variant has a text
of its own, so that its first use compiles no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.gradient import is_recording
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.kernels.linear.multiply import MOST_ROWS, column_sums, multiply
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.cells import COMPILED_WALKS, Norms, supports
from duoln.kernels.recurrent.launches import BIASES, CELL, CELL_BACK, WALKS
from duoln.kernels.recurrent.positions import PARAMETERS, Parameters, Positions, Units
from duoln.kernels.recurrent.weights import Means, Walked, in_c_order, is_transposed
from duoln.ops.recurrent.variants import CELLS

_WORTH_THREADS_BYTES = 1 << 21
"""Bytes of the weights below which a second thread costs more than it saves in one time step."""


class _Walk(NamedTuple):
    """The compiled walks of a variant, and what a call needs to know of it."""

    entries: dict[str, Launch]
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
        return cls(WALKS[cell, norm], gates, len(of_cell.states), _kept_norms(cell, over, h_gates), h_gates,
                   is_apart=h_gates > 0 and not is_lstm, overwrites=is_lstm,
                   has_few_inputs=(cell, norm) == ("lstm", "layer"), is_of_batch=over == "batch",
                   is_carried=is_lstm and over == "gate", means=Means(parts), has_inner_bias=variant.inner_bias,
                   parameters=Parameters.of(cell, norm))

    def refusal(self, dtype: np.dtype) -> str | None:
        """Why the text has no library for a dtype."""
        return native.refusal(self.entries["forward"].entries.cpp_file, dtype)


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
    parameters: dict[str, Array | None]
    """By `positions.PARAMETERS`."""
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

    def arguments(self, x_proj: Array | None, h_proj: Array | None, multiplies: bool, **more: Any) -> dict[str, Any]:
        """The arguments that both walks share, and more; `multiplies` is true if the walk multiplies the inputs."""
        walk, walked, positions = self.walk, self.walked, self.walked.positions
        x, w_x = (walked.x, walked.w_x) if multiplies else (None, None)
        threads, by_units = walks.threads(positions, walked.w_h, walk.is_of_batch)
        return {"w_h": walked.w_h, "x": x, "w_x": w_x, "x_proj": x_proj, "h_proj": h_proj, "hidden": walked.hidden,
                "cells": self.cells, "raw_cells": self.raw_cells, "norms": self.norms, "slots": positions.slots,
                "steps": positions.steps, "batch": positions.batch, "inputs": walked.x.shape[1],
                "units": walked.units.hidden, "eps": self.eps, "reverse": positions.reverse, "threads": threads,
                "by_units": by_units, "transposed": walked.transposed,
                **self.parameters, **more}


def _forward(variants: Mapping[str, _Walk], be: Backend, x: Array, *arrays: Any, norm: str, eps: float, reverse: bool,
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
    launch = walk.entries["forward"]
    launch["numpy"](*launch.named(saved.arguments(x_proj, h_proj, saved.has_few_inputs or walked.is_one_step)))
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
    d_states = [walks.padded_gradient(units, d, walked.hidden) for d in gouts[1:]]
    d_rows = host.empty_like(walked.x) if few and needs[0] else None
    d_weights = walks.row_blocks(positions.batch, walked.w_x.shape, dtype) if few else None
    d_x_proj, d_h_proj = x_proj, h_proj
    if not walk.overwrites:
        assert x_proj is not None
        d_x_proj = host.empty_like(x_proj)
        d_h_proj = host.empty_like(x_proj) if walk.is_apart else None
    parts = walk.parameters.room(units, positions.batch, dtype)
    d_hidden = None if gouts[0] is None else host.contiguous(gouts[0].astype(dtype, copy=False))
    launch = walk.entries["backward"]
    launch["numpy"](*launch.named(saved.arguments(
        x_proj, h_proj, few, d_hidden=d_hidden, dh=d_states[0], dc=d_states[-1], d_x=d_rows, d_w_x=d_weights,
        d_x_proj=d_x_proj, d_h_proj=d_h_proj, limit=saved.limit, **parts)))
    if d_weights is None:
        d_x, d_w_x = walked.input_gradients(d_x_proj, needs[0])
    else:
        d_x = None if d_rows is None else positions.scatter_rows(d_rows)
        d_w_x = units.unpad(host.added_up(d_weights))
        d_w_x = walk.means.subtract_from(d_w_x, out=d_w_x)
    d_w_h = walked.state_gradient(d_x_proj if d_h_proj is None else d_h_proj)
    d_bias, *d_norms = walk.parameters.gradients(units, parts)
    if walk.has_inner_bias:
        d_bias = walk.means.without_of_bias(units.unpad(column_sums(d_x_proj)), d_bias)
    return [d_x, *[units.unpad(d, 1) for d in d_states], d_w_x, d_w_h, d_bias, None, *d_norms]


_VARIANTS = {cell: {norm: _Walk.of(cell, norm) for of, norm in COMPILED_WALKS if of == cell} for cell in CELLS}


def _rule_of_walks(variants: Mapping[str, _Walk]) -> Rule:
    def refusal(be: Backend, x: Array, h: Array, *arrays: Array, norm: str, **unused: Any) -> str | None:
        if norm not in variants:
            return f"norm '{norm}' has no compiled walk"
        if variants[norm].is_of_batch and x.shape[1] == 1:
            return "the statistics of one row are none"
        if not x.size or not h.size:
            return "there are no values"
        return variants[norm].refusal(x.dtype)

    return Rule("compiled walk", partial(_forward, variants), _vjp, refusal)


# One time step of a few rows where no gradient is recorded: one call, which keeps and packs nothing ---------------


def _places_of(cell: str, norm: str) -> dict[str, int]:
    """The parameters of a time step with their places in (bias, *norms): it adds the biases up itself."""
    terms = {name: terms for name, terms, _ in Parameters.of(cell, norm).read}
    biases = dict(zip(BIASES, terms.pop("bias_x", ()), strict=False))
    return {name: place for name, (place,) in terms.items()} | biases


def _rule_of_step(cell: str, variants: Mapping[str, _Walk], of_walk: Rule) -> Rule:
    """The rule of a cell. A gradient that was not foreseen is that of the walk, which runs then."""
    places = {norm: _places_of(cell, norm) for norm in variants}
    count = len(CELLS[cell].states)
    none = dict.fromkeys((*PARAMETERS, *BIASES, "inner_bias"))

    def forward(be: Backend, x: Array, *arrays: Any, norm: str, eps: float, **attrs: Any) -> tuple[Any, Any]:
        walk = variants[norm]
        states, (w_x, w_h, bias, _, *norms) = arrays[:count], arrays[count:]
        before = [host.contiguous(state) for state in states]
        after = [host.empty_like(state) for state in before]
        transposed, given = is_transposed(w_h), (bias, *norms)
        values = {**none, **_numbers(x, w_x, w_h, eps), "w_h": in_c_order(w_h, transposed), "x": host.contiguous(x[0]),
                  "w_x": in_c_order(w_x, transposed), "h": before[0], "c": before[-1], "h_new": after[0],
                  "c_new": after[-1]}
        for name, place in places[norm].items():
            values[name] = None if given[place] is None else host.contiguous(given[place])
        if walk.has_inner_bias:
            values["inner_bias"] = host.contiguous(walk.means.without_of_bias(bias))
        launch = walk.entries["step"]
        launch["numpy"](*launch.named(values))
        return (after[0].reshape(1, *after[0].shape), *after), ((x, *arrays), {"norm": norm, "eps": eps, **attrs})

    def vjp(be: Backend, saved: Any, gouts: Any, needs: Sequence[bool]) -> Any:
        arrays, attrs = saved
        assert of_walk.vjp is not None
        return of_walk.vjp(be, of_walk.forward(be, *arrays, **attrs)[1], gouts, needs)

    def bind(be: Backend, x: Array, *arrays: Any, norm: str, eps: float, theirs: bool = False, **attrs: Any,
             ) -> Callable[..., None] | None:
        walk, (w_x, w_h, _, _, *norms) = variants[norm], arrays[count:]
        transposed = is_transposed(w_h)
        lie = in_c_order(w_h, transposed) is w_h and in_c_order(w_x, transposed) is w_x
        if walk.has_inner_bias or not lie or not all(a.flags.c_contiguous for a in norms):
            return None
        values: dict[str, Any] = {**_numbers(x, w_x, w_h, eps, theirs), "w_h": host.address(w_h),
                                  "w_x": host.address(w_x)}
        values |= {name: host.address(norms[place - 1]) for name, place in places[norm].items() if place}
        entries = walk.entries["step"].entries
        of_bias = next((name for name, place in places[norm].items() if place == 0), "inner_bias")
        states = ("h", "c")[:count]
        free = [entries.parameters.index(name) for name in ("x", of_bias, *states, *(f"{s}_new" for s in states))]
        entry, words = entries.by_address(x.dtype), [values.get(name) for name in entries.parameters]
        kept = w_x, w_h, norms

        def run(*addresses: int | None) -> None:
            filled = words.copy()
            for place, address in zip(free, addresses, strict=True):
                filled[place] = address
            entry(*filled)

        run.kept = kept  # type: ignore[attr-defined]  # the memory of what is bound lives as long
        return run

    def refusal(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
        if x.shape[0] != 1 or x.shape[1] > MOST_ROWS or arrays[count + 3] is not None:
            return f"it is for one time step of at most {MOST_ROWS} rows without a mask"
        if is_recording():
            return "a gradient needs what the walk keeps"
        return None if of_walk.supports is None else of_walk.supports(be, x, *arrays, **attrs)

    return Rule("compiled time step", forward, vjp, refusal, bind=bind)


def _numbers(x: Array, w_x: Array, w_h: Array, eps: float, theirs: bool = False) -> dict[str, Any]:
    """The numbers that a time step takes."""
    return {"batch": x.shape[1], "inputs": w_x.shape[0], "units": w_h.shape[0], "eps": eps, "theirs": theirs,
            "threads": host.threads_for(w_x.nbytes + w_h.nbytes, _WORTH_THREADS_BYTES),
            "transposed": is_transposed(w_h)}


# One time step of an LSTM after its products: each row is read once -----------------------------------------------


class _CellSaved(NamedTuple):
    x_proj: Array
    h_proj: Array
    c: Array
    parameters: dict[str, Array | None]
    """By `positions.PARAMETERS`."""
    inner_bias: Array | None
    """The bias inside the input's norm, without its mean."""
    c_new: Array
    norms: Array
    """(B, 9): of each norm the mean, what rounding left of it, and rstd."""
    units: Units
    norm: str
    eps: float

    def arguments(self, **more: Any) -> dict[str, Any]:
        """The arguments that both directions share, and more."""
        normed = Norms.of("lstm", self.norm)
        return {**self._asdict(), "variant": 2 if normed.gates else int(normed.cell),  # as cell.cpp has them
                "threads": native.threads_for(self.x_proj.nbytes), **self.parameters, **more}


def _cell_forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
                  eps: float) -> tuple[tuple[Array, Array], _CellSaved]:
    units = Units.of(CELLS["lstm"].gates, c.shape[1], c.dtype)
    is_inner = CELLS["lstm"].variants[norm].inner_bias
    saved = _CellSaved(host.contiguous(x_proj), host.contiguous(h_proj), host.contiguous(c),
                   Parameters.of("lstm", norm).filled(units, (bias, *norm_arrays)),
                   units.filled(bias - bias.mean()) if is_inner else None, host.empty(c.shape, c.dtype),
                   host.empty((len(c), 9), c.dtype), units, norm, eps)
    return (CELL["numpy"](*CELL.named(saved.arguments())), saved.c_new), saved


def _cell_vjp(be: Backend, saved: _CellSaved, gouts: tuple[Array | None, Array | None],
              needs: Sequence[bool]) -> list[Array | None]:
    dtype = saved.c.dtype
    d_x_proj = host.empty_like(saved.x_proj)
    d_h_proj = host.empty_like(saved.x_proj) if Norms.of("lstm", saved.norm).gates else d_x_proj
    parts = Parameters.of("lstm", saved.norm).room(saved.units, len(saved.c), dtype)
    d_h, d_c = [None if d is None else host.contiguous(d.astype(dtype, copy=False)) for d in gouts]
    d_c_before = CELL_BACK["numpy"](*CELL_BACK.named(saved.arguments(
        d_h=d_h, d_c=d_c, d_x_proj=d_x_proj, d_h_proj=d_h_proj, **parts)))
    d_bias, *d_norms = Parameters.of("lstm", saved.norm).gradients(saved.units, parts)
    if saved.inner_bias is not None:
        d_bias = d_bias + column_sums(d_x_proj)
    return [d_x_proj, d_h_proj, d_c_before, d_bias, *d_norms]


def _sequence_forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: None,
                      *norm_arrays: Array, norm: str, eps: float, **unused: Any) -> tuple[tuple[Array, ...], Any]:
    """A sequence of one time step; the step's norms subtract the means that a walk takes out of the weights."""
    rows = x[0]
    x_proj, h_proj = multiply(rows, w_x), multiply(h, w_h)
    (h_new, c_new), step = _cell_forward(be, x_proj, h_proj, c, bias, *norm_arrays, norm=norm, eps=eps)
    return (h_new[None], h_new, c_new), (step, rows, h, w_x, w_h)


def _sequence_vjp(be: Backend, saved: tuple[Any, ...], gouts: Sequence[Array | None],
                  needs: Sequence[bool]) -> list[Array | None]:
    (step, x, h, w_x, w_h), (d_hidden, d_h, d_c) = saved, gouts
    if d_hidden is not None:
        d_h = d_hidden[0] if d_h is None else d_hidden[0] + d_h
    d_x_proj, d_h_proj, d_c_before, *d_parameters = _cell_vjp(be, step, (d_h, d_c), needs)
    return [multiply(d_x_proj, w_x.T)[None] if needs[0] else None, multiply(d_h_proj, w_h.T) if needs[1] else None,
            d_c_before, _gradient(w_x, x, d_x_proj) if needs[3] else None,
            _gradient(w_h, h, d_h_proj) if needs[4] else None,
            d_parameters[0], None, *d_parameters[1:]]


def _gradient(weight: Array, x: Array, d_product: Array) -> Array:
    """The gradient of a weight, which lies as the weight, from that of its product with x."""
    return multiply(d_product.T, x).T if is_transposed(weight) else multiply(x.T, d_product)


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`; later ones are tried first."""
    of_cell = supports("lstm")

    def refusal(be: Backend, x_proj: Array, *arrays: Array, **attrs: Any) -> str | None:
        return of_cell(be, x_proj, *arrays, **attrs) or native.refusal("recurrent/lstm/cell.cpp", x_proj.dtype)

    def sequence_refusal(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array | None,
                         mask: Array | None, *norms: Array, gradient_limit: float | None = None,
                         **attrs: Any) -> str | None:
        if x.shape[0] != 1 or x.shape[1] <= MOST_ROWS:
            return f"it is for one time step of more than {MOST_ROWS} rows"
        if mask is not None or gradient_limit is not None:
            return "it has no mask, and no bound on gradients"
        return refusal(be, x, h, **attrs)

    ops.lstm_cell.add(Rule("compiled step", _cell_forward, _cell_vjp, refusal), backend="numpy")
    for operator in (ops.rnn, ops.lstm, ops.gru):
        variants = _VARIANTS[operator.name]
        walk = _rule_of_walks(variants)
        operator.add(walk, backend="numpy")
        if operator is ops.lstm:
            operator.add(Rule("compiled step", _sequence_forward, _sequence_vjp, sequence_refusal), backend="numpy")
        operator.add(_rule_of_step(operator.name, variants, walk), backend="numpy")
