"""The recurrent operators on NumPy, written to be read: one product for all inputs, one time step after another, then
one product per weight.

These rules run where no compiler is found, and the compiled walks are tested against them. A cell computes a time step
between its products (`equations`). A masked row keeps its states, and their gradients pass unchanged to the time step
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.recurrent.cells import Arrays, supports
from duoln.kernels.recurrent.equations import Cell, Gru, Lstm, Rnn, States
from duoln.ops.recurrent.variants import norm_shapes


class _Saved(NamedTuple):
    cell: Cell
    kept: list[Any]
    """The values that each time step keeps, in the order of the walk."""
    x: Array
    before: Array
    """The hidden state before each time step, (T, B, H)."""
    w_x: Array
    w_h: Array
    mask: Array | None
    times: Sequence[int]
    limit: float | None
    """The bound on the gradients of the states before a time step."""


def _rule(kind: type[Cell]) -> Rule:
    """The rule of a cell over a sequence."""

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states, w_x, w_h, bias, mask, norms = Arrays.of(kind.name, attrs["norm"], arrays)
        cell = kind(attrs["norm"], attrs["eps"], bias, norms)
        times = range(len(x) - 1, -1, -1) if attrs["reverse"] else range(len(x))
        if mask is not None:
            x = np.where(mask[..., None], x, x.dtype.type(0))  # padding may be infinite, and its gradient would be NaN
        x_proj = x @ w_x
        before, hidden = np.empty((2, len(x), *states[0].shape), x.dtype)
        kept = []
        for t in times:
            before[t] = states[0]
            new, of_step = cell.forward(x_proj[t], states[0] @ w_h, states)
            states = new if mask is None else _chosen(mask[t], new, states)
            hidden[t] = states[0]
            kept.append(of_step)
        return (hidden, *states), _Saved(cell, kept, x, before, w_x, w_h, mask, times, attrs["gradient_limit"])

    return Rule("fused steps", forward, _vjp, supports(kind.name))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    d_hidden, *d_last = gouts
    zeros = np.zeros_like(saved.before[0])
    d_states = tuple(zeros if d is None else d for d in d_last)
    no_states = (zeros,) * len(d_states)
    wide = (*saved.before.shape[:2], saved.w_h.shape[1])
    d_x_proj, d_h_proj = np.empty((2, *wide), zeros.dtype)
    totals: dict[str, Array] = {}
    for t, kept in zip(reversed(saved.times), reversed(saved.kept), strict=True):
        if d_hidden is not None:
            d_states = (d_states[0] + d_hidden[t], *d_states[1:])
        mask = None if saved.mask is None else saved.mask[t]
        gradient = saved.cell.backward(kept, d_states if mask is None else _chosen(mask, d_states, no_states))
        d_x_proj[t], d_h_proj[t] = gradient.x_proj, gradient.h_proj
        d_before = (gradient.states[0] + gradient.h_proj @ saved.w_h.T, *gradient.states[1:])
        if saved.limit is not None:
            d_before = tuple(np.clip(d, -saved.limit, saved.limit) for d in d_before)
        d_states = d_before if mask is None else _chosen(mask, d_before, d_states)
        for name, d in gradient.parameters.items():
            totals[name] = totals[name] + d if name in totals else d
    d_x = d_x_proj @ saved.w_x.T if needs[0] else None
    if d_x is not None and saved.mask is not None:
        d_x = np.where(saved.mask[..., None], d_x, d_x.dtype.type(0))
    return [d_x, *d_states, _weight_gradient(saved.x, d_x_proj), _weight_gradient(saved.before, d_h_proj),
            totals.get("bias"), None, *(totals[name] for name in saved.cell.norms)]


def _chosen(mask: Array, of_real: States, of_masked: States) -> States:
    """The rows of the first arrays where the mask (B,) is True, those of the second where it is False."""
    return tuple(np.where(mask[:, None], a, b) for a, b in zip(of_real, of_masked, strict=True))


def _weight_gradient(inputs: Array, d_products: Array) -> Array:
    """The gradient of a weight that multiplies all time steps and rows: (T, B, n) and (T, B, m) to (n, m)."""
    return inputs.reshape(-1, inputs.shape[2]).T @ d_products.reshape(-1, d_products.shape[2])


def _cell_step(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
               eps: float) -> tuple[States, tuple[Cell, Any]]:
    """One time step of an LSTM after its products."""
    cell = Lstm(norm, eps, bias, dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True)))
    states, kept = cell.forward(x_proj, h_proj, (c, c))  # the hidden state before is read through h_proj alone
    return states, (cell, kept)


def _cell_step_vjp(be: Backend, saved: tuple[Cell, Any], gouts: tuple[Array | None, ...],
                   needs: Sequence[bool]) -> list[Array | None]:
    cell, kept = saved
    gradient = cell.backward(kept, tuple(np.zeros_like(kept.c) if d is None else d for d in gouts))
    return [gradient.x_proj, gradient.h_proj, gradient.states[1],
            *(gradient.parameters[name] for name in ("bias", *cell.norms))]


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`."""
    for operator, kind in ((ops.rnn, Rnn), (ops.lstm, Lstm), (ops.gru, Gru)):
        operator.add(_rule(kind), backend="numpy")
    ops.lstm_cell.add(Rule("fused step", _cell_step, _cell_step_vjp, supports("lstm")), backend="numpy")
