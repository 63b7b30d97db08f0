"""The recurrent operators on NumPy, written to be read: one product for all inputs, one time step after another, then
one product per weight.

These rules run where no compiler is found, and the compiled walks are tested against them. A cell computes a time step
between its products, forward and backward, from its equations. A masked row keeps its states, and their gradients pass
unchanged to the time step before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.recurrent.supports import supports
from duoln.ops.recurrent.variants import norm_shapes

States = tuple[Array, ...]


class Gradient(NamedTuple):
    """The gradients of one time step."""

    x_proj: Array
    h_proj: Array
    states: States
    """Those of the states before the time step, without the part that comes through `h_proj`."""
    parameters: dict[str, Array]
    """Those of the bias, by the name "bias" if there is one, and of the norms, summed over the rows."""


class Cell(Protocol):
    """The equations of a cell and its variant, with the parameters that they read."""

    def forward(self, x_proj: Array, h_proj: Array, states: States) -> tuple[States, Any]:
        """The next states, and what the gradient needs.

        Shape:
            x_proj = x W_x and h_proj = h W_h (B, gates * H), states (B, H) -> (B, H) each.
        """
        ...

    def backward(self, kept: Any, d_states: States) -> Gradient:
        """The gradients of a time step from those of the next states."""
        ...


MakeCell = Callable[[str, float, Array | None, Mapping[str, Array]], Cell]
"""A cell from the name of its variant, epsilon, the bias and the norms' parameters by name."""


class _Saved(NamedTuple):
    cell: Cell
    kept: list[Any]
    """What each time step keeps, in the order of the walk."""
    x: Array
    before: Array
    """The hidden state before each time step, (T, B, H)."""
    w_x: Array
    w_h: Array
    mask: Array | None
    times: Sequence[int]
    parameters: list[str]
    limit: float | None
    """The bound on the gradients of the states before a time step."""


def sigmoid(x: Array) -> Array:
    """The logistic function e^x / (1 + e^x), which keeps its digits where it is small."""
    power: Array = np.exp(np.minimum(x, 88.0))  # the power of a larger value overflows
    return power / (power + 1.0)


def rule(name: str, make_cell: MakeCell, variants: Sequence[str]) -> Rule:
    """The rule of a cell, "rnn", "gru" or "lstm", over a sequence."""
    n_states = 2 if name == "lstm" else 1

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states: States = arrays[:n_states]
        w_x, w_h, bias, mask, *norm_arrays = arrays[n_states:]
        norms = dict(zip(norm_shapes(name, attrs["norm"], 1), norm_arrays, strict=True))
        cell = make_cell(attrs["norm"], attrs["eps"], bias, norms)
        times = range(len(x) - 1, -1, -1) if attrs["reverse"] else range(len(x))
        x_proj = x @ w_x
        before, hidden = np.empty((2, len(x), *states[0].shape), x.dtype)
        kept = []
        for t in times:
            before[t] = states[0]
            new, of_step = cell.forward(x_proj[t], states[0] @ w_h, states)
            states = new if mask is None else _chosen(mask[t], new, states)
            hidden[t] = states[0]
            kept.append(of_step)
        return (hidden, *states), _Saved(cell, kept, x, before, w_x, w_h, mask, times, ["bias", *norms],
                                         attrs["gradient_limit"])

    return Rule("fused steps", forward, _vjp, supports(variants))


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
    return [d_x, *d_states, _weight_gradient(saved.x, d_x_proj), _weight_gradient(saved.before, d_h_proj),
            totals.get("bias"), None, *(totals[name] for name in saved.parameters[1:])]


def _chosen(mask: Array, of_real: States, of_masked: States) -> States:
    """The rows of the first arrays where the mask (B,) is True, those of the second where it is False."""
    return tuple(np.where(mask[:, None], a, b) for a, b in zip(of_real, of_masked, strict=True))


def _weight_gradient(inputs: Array, d_products: Array) -> Array:
    """The gradient of a weight that multiplies all time steps and rows: (T, B, n) and (T, B, m) to (n, m)."""
    return inputs.reshape(-1, inputs.shape[2]).T @ d_products.reshape(-1, d_products.shape[2])
