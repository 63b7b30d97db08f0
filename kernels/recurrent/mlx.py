"""The recurrent operators on MLX: all inputs at once, steps without products in them, one product per weight after.

What a step does with its product is the formula of `ops.recurrent`, as one function of arrays; on a GPU MLX compiles
it (its CPU build takes seconds to). The gradient walks the steps backwards with `mx.vjp` of that
function, which computes the step again. So per step and row only the input's side and the states are kept, and the
gradient of each weight is one product: for every variant, with layer norm or without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule, Tensor, derived
from duoln.ops import gru, linear, lstm, rnn
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import norm_shapes

_Step = Callable[..., tuple[Array, ...]]


class _Saved(NamedTuple):
    step: _Step
    sides: Any
    """What the input's side saved for its own gradient."""
    inputs: list[Array]
    """The input's side of each step, in the order of the walk."""
    states: list[tuple[Array, ...]]
    """The states before each step."""
    keeps: list[Array] | None
    weights: tuple[Array, list[Array]]
    """W_h, and the bias (if there is one) and norms that a step reads."""
    times: Sequence[int]
    has_bias: bool


def _input_rule(cell: str, settings: Settings, names: Sequence[str]) -> Rule:
    """The input's side of all steps as a rule: x, w_x, bias, norms -> (T, B, gates * H)."""

    def side(x: Tensor, w_x: Tensor, bias: Tensor | None, *norms: Tensor) -> Tensor:
        return formulas.input_side(cell, linear(x, w_x), bias, dict(zip(names, norms, strict=True)), settings)

    return derived(side)


def _step_function(be: Backend, cell: str, settings: Settings, names: Sequence[str], has_bias: bool,
                   masked: bool) -> _Step:
    """One step as a function of arrays: (input's side, product, mask?, states, bias?, norms) -> next states."""
    n_states = 2 if cell == "lstm" else 1

    def step(side: Array, product: Array, *rest: Array) -> tuple[Array, ...]:
        tensors = [Tensor(a, be) for a in rest]
        keep = tensors.pop(0) if masked else None
        states = tuple(tensors[:n_states])
        others = tensors[n_states:]
        bias = others.pop(0) if has_bias else None
        new = formulas.next_states(cell, Tensor(side, be), Tensor(product, be), states, bias,
                                   dict(zip(names, others, strict=True)), settings)
        if keep is None:
            return tuple(t.data for t in new)
        return tuple(mx.where(keep.data, a.data, b.data) for a, b in zip(new, states, strict=True))

    compiled: _Step = mx.compile(step) if getattr(be, "on_gpu", False) else step
    return compiled


def _rule(cell: str, n_states: int) -> Rule:
    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[tuple[Array, ...], _Saved]:
        states = tuple(arrays[:n_states])
        w_x, w_h, bias, mask, *norms = arrays[n_states:]
        names = list(norm_shapes(cell, attrs["norm"], 1))
        settings = Settings(attrs["norm"], attrs["eps"], attrs["eps_place"])
        rule = _input_rule(cell, settings, names)
        side, side_saved = rule.forward(be, x, w_x, bias, *norms)
        step = _step_function(be, cell, settings, names, bias is not None, mask is not None)
        read = [*([] if bias is None else [bias]), *norms]
        times = range(x.shape[0] - 1, -1, -1) if attrs["reverse"] else range(x.shape[0])
        keeps = None if mask is None else [mask[t][:, None] for t in times]
        before, hidden = [], {}
        for k, t in enumerate(times):
            before.append(states)
            states = step(side[t], states[0] @ w_h, *([] if keeps is None else [keeps[k]]), *states, *read)
            hidden[t] = states[0]
        out = mx.stack([hidden[t] for t in sorted(hidden)])
        saved = _Saved(step, (rule, side_saved), [side[t] for t in times], before, keeps, (w_h, read), times,
                       bias is not None)
        return (out, *states), saved

    def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
        g_out, *g_states = gouts
        w_h, read = saved.weights
        d_states = [mx.zeros_like(s) if g is None else g for g, s in zip(g_states, saved.states[0], strict=True)]
        d_read = [mx.zeros_like(a) for a in read]
        d_sides: dict[int, Array] = {}
        d_products: list[Array] = []
        w_back = mx.transpose(w_h)
        for k in reversed(range(len(saved.times))):
            if g_out is not None:
                d_states[0] = d_states[0] + g_out[saved.times[k]]
            states = saved.states[k]
            keep = [] if saved.keeps is None else [saved.keeps[k]]

            def of_floats(side: Array, product: Array, *rest: Array, keep: list[Array] = keep) -> tuple[Array, ...]:
                return saved.step(side, product, *keep, *rest)

            primals = [saved.inputs[k], states[0] @ w_h, *states, *read]
            _, found = mx.vjp(of_floats, primals, d_states)
            d_side, d_product, *rest = found
            d_sides[saved.times[k]] = d_side
            d_products.append(d_product)
            d_states = rest[:n_states]
            d_states[0] = d_states[0] + d_product @ w_back
            d_read = [a + b for a, b in zip(d_read, rest[n_states:], strict=True)]
        before = mx.concatenate([s[0] for s in reversed(saved.states)])
        d_w_h = mx.transpose(before) @ mx.concatenate(d_products)
        rule, side_saved = saved.sides
        d_side_all = mx.stack([d_sides[t] for t in sorted(d_sides)])
        float_needs = (needs[0], True, saved.has_bias, *(True for _ in read[saved.has_bias:]))
        assert rule.vjp is not None
        d_x, d_w_x, d_bias, *d_norms = rule.vjp(be, side_saved, d_side_all, float_needs)
        if saved.has_bias:
            d_bias = d_bias + d_read.pop(0)
        return [d_x, *d_states, d_w_x, d_w_h, d_bias, None,
                *(a + b for a, b in zip(d_norms, d_read, strict=True))]

    def supports(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
        return None if x.size and arrays[0].size else "there are no values"

    return Rule("steps without products", forward, vjp, supports)


def attach() -> None:
    """Add the rule to `lstm`, `gru` and `rnn`."""
    ops: list[tuple[Op[..., Any], str, int]] = [(lstm, "lstm", 2), (gru, "gru", 1), (rnn, "rnn", 1)]
    for op, cell, n_states in ops:
        op.add(_rule(cell, n_states), backend="mlx")
